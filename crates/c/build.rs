//! Gives the shared library the name that programs look for: its number changes when they must be built anew.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libslackwater.so.0");
}
