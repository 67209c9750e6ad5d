//! The operations on objects, one file each.

mod batch;
mod change;
mod count;
mod enumerate;
mod read;
