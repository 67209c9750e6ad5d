//! The operations on objects: get and mutate, of one or many items, enumerate and count.

mod count;
mod enumerate;
mod get;
mod mutate;
mod replies;

pub use replies::Replies;
