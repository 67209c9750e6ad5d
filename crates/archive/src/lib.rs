//! Archives: what `pluvio backup` keeps of a cluster. `docs/backup-and-restore.md` tells how one is
//! made and used.
//!
//! ```text
//! PLACE/archives/ID.json      the manifest: tables, and the packs of each; written last
//! PLACE/packs/SHA256.pack     objects of one table, up to about 8 MiB; archives share them
//! PLACE/claims/…              commands that write a manifest, or remove packs
//! ```
//!
//! - ARCHIVE-1: a manifest is written when all its packs are durable, under a name that nobody has.
//!   So an archive is whole or not there, and none is overwritten.
//! - ARCHIVE-2: a pack is named by the checksum of its bytes. So equal packs are written once, and
//!   a backup that was cut off is taken up by the next one.
//! - ARCHIVE-3: every byte that is read is compared with a checksum before anything is made of it.
//! - ARCHIVE-4: reading is total: any bytes give an error that says what to do, and no panic.
//! - ARCHIVE-5: a manifest is written only while nobody removes packs, after a look that all of its
//!   packs are there. Packs are removed only while nobody writes a manifest (`claims`). They are a
//!   day old, and no manifest names them.
//!
//! A place is a directory, or with cargo feature `s3` a bucket of an object store. Both keep the
//! same rules.
//!
//! Plain values and files; any thread. Calls that read or write a place block. Not here: how
//! objects are read from a cluster and written to one (crate `cli`).

#[cfg(feature = "s3")]
mod bucket;
mod claims;
mod directory;
mod error;
mod ground;
mod manifest;
mod pack;
mod place;
mod prune;

pub use error::ArchiveError;
pub use manifest::{
    ArchivedDurability, ArchivedHash, ArchivedTable, Consistency, MANIFEST_FORMAT, Manifest,
    PackRef, archive_id,
};
pub use pack::{ArchivedObject, PACK_BYTES_MAX, PackBuilder, Records, records};
pub use place::{Place, WrittenPack};
pub use prune::{KEPT_FOR, Pruned};

#[cfg(test)]
mod tests;
