# Debian's package is there already.
set(VCPKG_POLICY_EMPTY_PACKAGE enabled)
