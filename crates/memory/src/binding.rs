//! The memory node of the machine on which the pages of a region lie.
//!
//! A page comes from the node of the thread that touches it first. A store whose cleaner or log
//! reader runs elsewhere would scatter its pages, so a range can be given a node. The node is a
//! preference (`MPOL_PREFERRED`): when it has no page left, the system takes one from another node,
//! rather than kill the process.
//!
//! Two system calls are missing in rustix: `mbind`, and `move_pages`. The latter moves nothing when
//! it gets no nodes, and reports where pages are.

use crate::region::Region;
use core::ffi::{c_int, c_long, c_void};
use std::io;

/// Nodes have numbers below this, as in the kernel's largest configuration.
const NODES_MAX: u32 = 1024;
/// `MPOL_PREFERRED` of `linux/mempolicy.h`.
const PREFERRED: c_int = 1;

/// Why pages are not bound to a node. Harmless: they come from the node of the thread that touches
/// them first. Without the machine's help a retry gives the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("node {node}: {}", io::Error::from_raw_os_error(*.errno))]
pub struct BindRefused {
    /// The node's number.
    pub node: u32,
    /// The system's answer. `EINVAL`: no such node, or one that this process may not use. `EPERM`:
    /// a sandbox forbids the call. `ENOSYS`: a kernel without memory nodes.
    pub errno: i32,
}

impl Region {
    /// Takes pages of `len` bytes from `offset` on from a memory node, as long as it has some.
    /// Existing pages stay where they are.
    ///
    /// # Errors
    /// [`BindRefused`]: pages come from the usual node.
    ///
    /// # Panics
    /// When the range leaves the region or its borders are no multiples of
    /// [`crate::REGION_GRANULE_BYTES`].
    pub fn prefer_node(&self, offset: u64, len: u64, node: u32) -> Result<(), BindRefused> {
        self.check_granules(offset, len);
        if node >= NODES_MAX {
            let errno = libc::EINVAL;
            return Err(BindRefused { node, errno });
        }
        let mut mask = [0_u64; (NODES_MAX / 64) as usize];
        mask[(node / 64) as usize] = 1 << (node % 64);
        // The kernel looks at one bit less than the given number.
        let bits = c_long::from(NODES_MAX + 1);
        // SAFETY: a policy for our own mapping (R1, checked above), which changes no content. The
        // mask lives during the call and has the announced bits.
        let result = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.at(offset),
                len as c_long,
                c_long::from(PREFERRED),
                mask.as_ptr(),
                bits,
                0 as c_long,
            )
        };
        if result == 0 {
            return Ok(());
        }
        let errno = io::Error::last_os_error().raw_os_error().unwrap_or(0);
        Err(BindRefused { node, errno })
    }

    /// The memory node on which the page of `offset` lies. `None` if the page is untouched, or if
    /// the system does not tell.
    ///
    /// # Panics
    /// When `offset` lies behind the end (M1).
    #[must_use]
    pub fn node_of_page(&self, offset: u64) -> Option<u32> {
        assert!(
            offset < self.len(),
            "no page at offset {offset} of a region of {} bytes",
            self.len()
        );
        let pages = [self.at(offset).cast_const()];
        let mut places: [c_int; 1] = [-1];
        let nowhere: *const c_void = core::ptr::null();
        // SAFETY: without nodes the call moves nothing. Both arrays have the one announced element
        // and live during the call. The address is only looked up.
        let result = unsafe {
            libc::syscall(
                libc::SYS_move_pages,
                0 as c_long,
                1 as c_long,
                pages.as_ptr(),
                nowhere,
                places.as_mut_ptr(),
                0 as c_long,
            )
        };
        (result == 0)
            .then(|| u32::try_from(places[0]).ok())
            .flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::REGION_GRANULE_BYTES;
    use core::sync::atomic::Ordering;

    /// A touched page, so that the system reports its place. Without such a system there is nothing
    /// to test.
    fn system_tells(region: &Region) -> bool {
        region.word(0).store(1, Ordering::Relaxed);
        region.node_of_page(0).is_some()
    }

    #[test]
    fn pages_lie_on_the_node_they_were_bound_to() {
        let region = Region::anonymous(4 * REGION_GRANULE_BYTES, false).unwrap();
        if !system_tells(&region) {
            return;
        }
        let (from, len) = (REGION_GRANULE_BYTES, 2 * REGION_GRANULE_BYTES);
        assert_eq!(region.node_of_page(from), None, "it was never touched");
        let here = region.node_of_page(0).unwrap();
        region.prefer_node(from, len, here).unwrap();
        for offset in (from..from + len).step_by(4096) {
            region.word(offset).store(1, Ordering::Relaxed);
            assert_eq!(region.node_of_page(offset), Some(here));
        }
    }

    #[test]
    fn a_node_that_is_not_there_is_refused_and_the_memory_works() {
        let region = Region::anonymous(REGION_GRANULE_BYTES, false).unwrap();
        for node in [NODES_MAX - 1, NODES_MAX, u32::MAX] {
            let refused = region.prefer_node(0, region.len(), node).unwrap_err();
            assert_eq!(refused.node, node);
            assert!(refused.to_string().starts_with(&format!("node {node}: ")));
        }
        region.word(0).store(7, Ordering::Relaxed);
        assert_eq!(region.word(0).load(Ordering::Relaxed), 7);
    }
}
