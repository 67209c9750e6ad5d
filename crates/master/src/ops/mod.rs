//! The operations on objects: get and mutate, of one or many items, enumerate and
//! count; and the drop of what has expired.

mod count;
mod enumerate;
mod expire;
mod get;
mod mutate;
mod replies;

pub use replies::Replies;
