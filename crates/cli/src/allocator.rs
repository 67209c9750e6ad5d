//! The allocator where the C library's own is slow: that of musl has one lock for all threads. With
//! glibc the C library's stays, which `give_back_heap` knows.

#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
