#!/bin/sh
# A folder with Debian's libraries and headers of another processor, to build Kiln for it and to run that under qemu:
#
#   sysroot.sh FOLDER [ARCHITECTURE]     of Debian's name, arm64 without one
#
# Nothing is installed: apt downloads the packages by lists of its own in FOLDER, and they are unpacked there.
set -eu
folder=$1 arch=${2:-arm64}
[ ! -e "$folder/complete" ] || exit 0
for tool in apt-get dpkg-deb; do
    command -v $tool >/dev/null || { echo "no $tool: packages of $arch are Debian's" >&2 && exit 1; }
done
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
state=$folder/apt
rm -rf "$state"
mkdir -p "$state/lists/partial" "$state/cache/archives/partial"
: >"$state/status"
apt() {
    apt-get -qq -o APT::Architecture="$arch" -o APT::Architectures="$arch" -o APT::Sandbox::User=root \
        -o Acquire::Languages=none -o Dir::State="$state" -o Dir::State::status="$state/status" \
        -o Dir::Cache="$state/cache" -o Dir::Etc::SourceParts=- -o Dir::Etc::SourceList="$state/sources" "$@"
}
# Debian's own sources of this machine, without those of others
suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null |
    grep -oE 'https?://[^ ]*/debian/?( |$)' | head -n 1 | tr -d ' ')
keys=/usr/share/keyrings/debian-archive-keyring.gpg
[ ! -e $keys ] || options="[signed-by=$keys]"
for name in "$suite" "$suite-updates"; do
    echo "deb ${options:-} ${mirror:-http://deb.debian.org/debian} $name main"
done >"$state/sources"
apt update
apt install -y --download-only --no-install-recommends libc6-dev libllvm19 libstdc++6 libxxhash-dev zlib1g-dev \
    libprotobuf-c-dev libmpfr-dev
# of these the headers alone are needed, not what they depend on
(cd "$state/cache/archives" && apt download llvm-19-dev libonnx-dev)
for package in "$state"/cache/archives/*.deb; do
    case ${package##*/} in
    llvm-19-dev_*)
        dpkg-deb --fsys-tarfile "$package" |
            tar -x -C "$folder" --wildcards './usr/include/*' './usr/lib/llvm-19/include*'
        ;;
    *) dpkg-deb -x "$package" "$folder" ;;
    esac
done
find "$folder" -type l -lname '/*' | while read -r link; do ln -sfn "$folder$(readlink "$link")" "$link"; done
# What CMake is to know of LLVM: its own description wants all tools and static libraries to be there.
library=$(find "$folder/usr/lib" -name 'libLLVM.so.19*' -type f | head -n 1)
cmake=$folder/usr/lib/llvm-19/lib/cmake/llvm
mkdir -p "$cmake"
cat >"$cmake/LLVMConfig.cmake" <<END
set(LLVM_INCLUDE_DIRS $folder/usr/include/llvm-19 $folder/usr/include/llvm-c-19)
add_library(LLVM SHARED IMPORTED)
set_target_properties(LLVM PROPERTIES IMPORTED_LOCATION $library)
END
cat >"$cmake/LLVMConfigVersion.cmake" <<'END'
set(PACKAGE_VERSION 19.1)
set(PACKAGE_VERSION_COMPATIBLE TRUE)
END
rm -rf "$state"
touch "$folder/complete"
