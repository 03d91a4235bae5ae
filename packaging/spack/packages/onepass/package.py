"""Spack package of the library of a checkout: `spack install onepass dev_path=CHECKOUT`."""

from spack.package import conflicts, depends_on, license, variant, version

try:  # where Spack's packages are a repository of their own
    from spack_repo.builtin.build_systems.cmake import CMakePackage, generator
except ImportError:
    from spack.package import CMakePackage, generator


class Onepass(CMakePackage):
    """Exact attention in one pass, for CPUs and NVIDIA GPUs."""

    license("Apache-2.0")

    version("0.2.0")

    variant("shared", default=True, description="A shared library")
    variant("tbb", default=True, description="Threads by oneTBB; without it the library has a pool of its own")

    generator("ninja")
    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("highway@1.0.3:1", type="build")  # its headers
    depends_on("tbb", when="+tbb")

    conflicts("%gcc@:11")
    conflicts("%clang@:13")
    conflicts("platform=darwin")
    conflicts("platform=windows")

    def cmake_args(self):
        off = [self.define(f"ONEPASS_{part}", False) for part in ("TESTS", "TOOLS", "PYTHON", "WERROR")]
        return [
            *off,
            self.define_from_variant("BUILD_SHARED_LIBS", "shared"),
            self.define_from_variant("ONEPASS_TBB", "tbb"),
        ]
