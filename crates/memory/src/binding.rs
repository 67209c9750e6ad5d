//! The memory nodes of the machine on which the pages of a region lie.
//!
//! A page comes from the node of the thread that touches it first. A store whose cleaner or log
//! reader runs elsewhere would scatter its pages, so a range can be given a node. The node is a
//! preference (`MPOL_PREFERRED`): when it has no page left, the system takes one from another node,
//! rather than kill the process.
//!
//! Memory that the threads of all nodes use alike is interleaved (`MPOL_INTERLEAVE`): its pages
//! come from the nodes in turn. Otherwise one thread that fills it would bring all of it to its own
//! node. The links of that node would then carry all reads of the others.
//!
//! Three system calls are missing in rustix: `mbind`, `get_mempolicy`, and `move_pages`. The latter
//! moves nothing when it gets no nodes, and reports where pages are.

use crate::region::Region;
use core::ffi::{c_int, c_long, c_void};
use core::ops::Range;
use std::io;

/// Nodes have numbers below this, as in the kernel's largest configuration.
const NODES_MAX: u32 = 1024;
/// `MPOL_PREFERRED` of `linux/mempolicy.h`.
const PREFERRED: c_int = 1;
/// `MPOL_INTERLEAVE` of `linux/mempolicy.h`.
const INTERLEAVE: c_int = 3;
/// `MPOL_F_ADDR` of `linux/mempolicy.h`: the policy of an address.
const OF_ADDRESS: c_long = 2;
/// Words of a set of nodes.
const NODE_WORDS: usize = (NODES_MAX / 64) as usize;
/// The number of nodes that the system is told. The kernel looks at one bit less.
const NODE_BITS: c_long = NODES_MAX as c_long + 1;

/// A set of memory nodes, by the numbers that the system gives them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct NodeSet([u64; NODE_WORDS]);

impl NodeSet {
    /// No node.
    pub const EMPTY: Self = Self([0; NODE_WORDS]);

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Their numbers, in ascending order.
    pub fn numbers(&self) -> impl Iterator<Item = u32> {
        (0..NODES_MAX).filter(move |node| self.0[(node / 64) as usize] >> (node % 64) & 1 == 1)
    }
}

impl Default for NodeSet {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl FromIterator<u32> for NodeSet {
    /// Numbers that no kernel gives, from 1024 on, are left out.
    fn from_iter<I: IntoIterator<Item = u32>>(numbers: I) -> Self {
        let mut set = Self::default();
        for node in numbers.into_iter().filter(|node| *node < NODES_MAX) {
            set.0[(node / 64) as usize] |= 1 << (node % 64);
        }
        set
    }
}

impl core::fmt::Debug for NodeSet {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_set().entries(self.numbers()).finish()
    }
}

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

/// Why pages are not interleaved over nodes. Harmless: they come from the node of the thread that
/// touches them first. Without the machine's help a retry gives the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("over {nodes} nodes: {}", io::Error::from_raw_os_error(*.errno))]
pub struct InterleaveRefused {
    /// How many nodes were named.
    pub nodes: u32,
    /// The system's answer. `EINVAL`: this process may use the memory of none of them. `EPERM`: a
    /// sandbox forbids the call. `ENOSYS`: a kernel without memory nodes.
    pub errno: i32,
}

/// Whether the pages of memory that all threads share are interleaved over the memory nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Interleaving {
    /// Fewer than two nodes were named: pages come from the node of the thread that touches them
    /// first.
    #[default]
    FirstTouch,
    /// Pages come from the named nodes in turn.
    Interleaved,
    /// The system refused: as [`Self::FirstTouch`].
    Refused(InterleaveRefused),
}

impl Interleaving {
    /// What holds for two regions together: a refusal, if there is one.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Refused(_), _) | (Self::Interleaved, Self::FirstTouch | Self::Interleaved) => {
                self
            }
            (_, Self::Refused(_)) | (Self::FirstTouch, Self::FirstTouch | Self::Interleaved) => {
                other
            }
        }
    }
}

impl core::fmt::Display for Interleaving {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::FirstTouch => f.write_str("not interleaved: fewer than two nodes named"),
            Self::Interleaved => f.write_str("interleaved"),
            Self::Refused(why) => write!(f, "not interleaved: {why}"),
        }
    }
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
        let nodes = NodeSet::from_iter([node]);
        let range = offset..offset + len;
        self.mbind(range, PREFERRED, &nodes)
            .map_err(|errno| BindRefused { node, errno })
    }

    /// Takes the pages of all of it from these nodes in turn. Does nothing if there are fewer than
    /// two. The system leaves out nodes whose memory this process may not use. Existing pages stay
    /// where they are. The policy of a memory file is that of all processes that map it.
    pub fn interleave(&self, nodes: &NodeSet) -> Interleaving {
        if nodes.len() < 2 {
            return Interleaving::FirstTouch;
        }
        match self.mbind(0..self.len(), INTERLEAVE, nodes) {
            Ok(()) => Interleaving::Interleaved,
            Err(errno) => Interleaving::Refused(InterleaveRefused {
                nodes: nodes.len(),
                errno,
            }),
        }
    }

    /// Sets where the pages of a checked range come from, or gives the system's answer.
    fn mbind(&self, range: Range<u64>, policy: c_int, nodes: &NodeSet) -> Result<(), i32> {
        // SAFETY: a policy for our own mapping (R1, checked by the caller), which changes no
        // content. The mask lives during the call and has the announced bits.
        let result = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.at(range.start),
                (range.end - range.start) as c_long,
                c_long::from(policy),
                nodes.0.as_ptr(),
                NODE_BITS,
                0 as c_long,
            )
        };
        if result == 0 {
            return Ok(());
        }
        Err(io::Error::last_os_error().raw_os_error().unwrap_or(0))
    }

    /// The nodes over which the page of `offset` is interleaved: none, if it comes from elsewhere.
    /// `None` if the system does not tell.
    ///
    /// # Panics
    /// When `offset` lies behind the end (M1).
    #[must_use]
    pub fn interleaved_over(&self, offset: u64) -> Option<NodeSet> {
        assert!(
            offset < self.len(),
            "no page at offset {offset} of a region of {} bytes",
            self.len()
        );
        let mut policy: c_int = -1;
        let mut nodes = NodeSet::EMPTY;
        // SAFETY: the call stores into the two places, which live as long as it takes. The mask has
        // the announced bits. The address is only looked up.
        let result = unsafe {
            libc::syscall(
                libc::SYS_get_mempolicy,
                &raw mut policy,
                nodes.0.as_mut_ptr(),
                NODE_BITS,
                self.at(offset).cast_const(),
                OF_ADDRESS,
            )
        };
        if result != 0 {
            return None;
        }
        // The upper bits are flags.
        if policy & 0xff == INTERLEAVE {
            Some(nodes)
        } else {
            Some(NodeSet::EMPTY)
        }
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

    #[test]
    fn a_set_of_nodes_has_the_bits_that_the_system_reads() {
        let set = NodeSet::from_iter([70, 0, 1023, 1, 1, NODES_MAX, u32::MAX]);
        assert_eq!(set.len(), 4);
        assert_eq!(Vec::from_iter(set.numbers()), [0, 1, 70, 1023]);
        let mut words = [0; NODE_WORDS];
        (words[0], words[1], words[15]) = (0b11, 1 << 6, 1 << 63);
        assert_eq!(set.0, words);
        assert!(NodeSet::from_iter([NODES_MAX]).is_empty());
        assert_eq!(format!("{set:?}"), "{0, 1, 70, 1023}");
    }

    /// The word of `numa_maps` that says where the pages of a region come from.
    fn numa_maps(region: &Region) -> Option<String> {
        let maps = std::fs::read_to_string("/proc/self/numa_maps").ok()?;
        let start = format!("{:x} ", region.at(0).addr());
        let rest = maps.lines().find_map(|line| line.strip_prefix(&start))?;
        rest.split_whitespace().next().map(str::to_owned)
    }

    #[test]
    fn pages_come_from_all_named_nodes_in_turn() {
        let files = [false, true].map(|is_file| match is_file {
            false => Region::anonymous(4 * REGION_GRANULE_BYTES, false).unwrap(),
            true => Region::for_readers("pluvio-test", 4 * REGION_GRANULE_BYTES, false).unwrap(),
        });
        for region in files {
            region.allocate(0, REGION_GRANULE_BYTES).unwrap();
            if !system_tells(&region) {
                return;
            }
            let here = region.node_of_page(0).unwrap();
            let none = Some(NodeSet::EMPTY);
            assert_eq!(region.interleaved_over(0), none);
            assert_eq!(
                region.interleave(&NodeSet::from_iter([here])),
                Interleaving::FirstTouch,
                "there is nothing to do for one node"
            );
            assert_eq!(region.interleaved_over(0), none);
            // A second node that may be there or not.
            let two = NodeSet::from_iter([here, here ^ 1]);
            assert_eq!(region.interleave(&two), Interleaving::Interleaved);
            for offset in [0, region.len() - 1] {
                let over = region.interleaved_over(offset).unwrap();
                assert!(over.numbers().any(|node| node == here), "{over:?}");
                assert!(over.numbers().all(|node| node / 2 == here / 2), "{over:?}");
            }
            let told = numa_maps(&region).unwrap();
            assert!(told.starts_with("interleave"), "{told}");
            region.allocate(0, region.len()).unwrap();
            region
                .word(2 * REGION_GRANULE_BYTES)
                .store(7, Ordering::Relaxed);
        }
    }

    #[test]
    fn nodes_that_are_not_there_are_refused_and_the_memory_works() {
        let region = Region::anonymous(REGION_GRANULE_BYTES, false).unwrap();
        let Interleaving::Refused(why) = region.interleave(&NodeSet::from_iter([1022, 1023]))
        else {
            panic!("no machine has these nodes");
        };
        assert_eq!(why.nodes, 2);
        let text = Interleaving::Refused(why).to_string();
        let expected = "not interleaved: over 2 nodes: ";
        assert!(text.starts_with(expected), "{text}");
        region.word(0).store(7, Ordering::Relaxed);
        assert_eq!(region.word(0).load(Ordering::Relaxed), 7);
    }

    #[test]
    fn a_refusal_is_what_holds_for_two_regions() {
        let refused = Interleaving::Refused(InterleaveRefused { nodes: 2, errno: 1 });
        let (first, done) = (Interleaving::FirstTouch, Interleaving::Interleaved);
        for (a, b, both) in [
            (first, first, first),
            (first, done, done),
            (done, first, done),
            (done, refused, refused),
            (refused, first, refused),
        ] {
            assert_eq!(a.and(b), both);
        }
    }
}
