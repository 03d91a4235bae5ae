"""Conan 2 recipe of the library of this checkout. `conan create packaging/conan` builds it and tries it."""

import re
from pathlib import Path

from conan import ConanFile
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout
from conan.tools.files import copy, rmdir

required_conan_version = ">=2.4"


class Onepass(ConanFile):
    name = "onepass"
    description = "Exact attention in one pass, for CPUs and NVIDIA GPUs"
    license = "Apache-2.0"
    topics = ("attention", "flash-attention", "transformers", "simd", "cuda")
    package_type = "library"
    settings = "os", "compiler", "build_type", "arch"
    options = {"shared": [True, False], "fPIC": [True, False], "tbb": [True, False]}
    default_options = {"shared": False, "fPIC": True, "tbb": True}
    implements = ["auto_shared_fpic"]

    @property
    def checkout(self):
        return Path(self.recipe_folder).parent.parent

    def set_version(self):
        header = (self.checkout / "include/onepass/version.h").read_text()
        self.version = re.search(r'define ONEPASS_VERSION "(.*)"', header)[1]

    def export_sources(self):
        for pattern in ("CMakeLists.txt", "LICENSE", "cmake/*", "include/*", "src/*"):
            copy(self, pattern, self.checkout, self.export_sources_folder)

    def layout(self):
        cmake_layout(self)

    def validate(self):
        check_min_cppstd(self, 20)

    def requirements(self):
        self.requires("highway/[>=1.0.3 <2]", libs=False, visible=False)  # its headers
        if self.options.tbb:
            self.requires("onetbb/[>=2021.3 <2023]")

    def build_requirements(self):
        self.tool_requires("cmake/[>=3.25]")

    def generate(self):
        deps = CMakeDeps(self)
        deps.set_property("highway", "cmake_file_name", "hwy")
        deps.set_property("highway::hwy", "cmake_target_name", "hwy::hwy")
        deps.generate()
        toolchain = CMakeToolchain(self)
        for part in ("TESTS", "TOOLS", "WERROR"):
            toolchain.cache_variables[f"ONEPASS_{part}"] = False
        toolchain.cache_variables["ONEPASS_TBB"] = bool(self.options.tbb)
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        copy(self, "LICENSE", self.source_folder, Path(self.package_folder) / "licenses")
        CMake(self).install()
        for made_by_conan in ("cmake", "pkgconfig"):
            rmdir(self, Path(self.package_folder) / "lib" / made_by_conan)

    def package_info(self):
        self.cpp_info.libs = ["onepass"]
        self.cpp_info.set_property("cmake_file_name", "onepass")
        self.cpp_info.set_property("cmake_target_name", "onepass::onepass")
        self.cpp_info.set_property("pkg_config_name", "onepass")
        self.cpp_info.requires = ["onetbb::libtbb"] if self.options.tbb else []
        if not self.options.shared:
            self.cpp_info.system_libs = ["dl", "m", "pthread"]
