//! Libraries of functions, as FUNCTION LOAD takes them.

use crate::shebang::Flags;

/// A function of a library.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// What it is said to do.
    pub description: Option<Vec<u8>>,
    /// Its flags.
    pub flags: Flags,
}

/// A library.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Library {
    /// Its name.
    pub name: String,
    /// Its functions, in the order of their registration.
    pub functions: Vec<Function>,
}
