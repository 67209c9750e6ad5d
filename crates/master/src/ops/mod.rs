//! The operations on objects: get and mutate, of one or many items, enumerate and count. Besides,
//! transactions, also of several owners, and the drop of expired objects.

mod count;
mod enumerate;
mod expire;
mod get;
mod held_back;
mod mutate;
mod replies;
mod several;
mod top;
mod transact;
mod waiters;

pub(crate) use held_back::HeldBack;
pub use replies::Replies;
pub(crate) use waiters::Waiters;
