//! The members of the cluster: enlisting, the detection of crashes, and calls to servers.

mod calls;
mod detect;
mod server_list;
mod store_age;

pub(crate) use calls::Calls;
pub(crate) use detect::Detector;
#[cfg(test)]
pub(crate) use server_list::Enlisted;
pub(crate) use server_list::Registry;
