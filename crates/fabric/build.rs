//! Compiles the C half of this crate, under the feature `libfabric` alone.

fn main() {
    println!("cargo::rerun-if-changed=src/shim.c");
    #[cfg(feature = "libfabric")]
    {
        cc::Build::new()
            .file("src/shim.c")
            .warnings(true)
            .extra_warnings(true)
            .warnings_into_errors(true)
            .compile("pluvio_fabric_shim");
        println!("cargo::rustc-link-lib=fabric");
    }
}
