//! The login of coordinators at a metadata store that asks for one.

use core::fmt;

/// A user and its password. Shown without the password.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    /// The user, as etcd or ZooKeeper knows it.
    pub user: String,
    /// Its password.
    pub password: String,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Login({:?}, …)", self.user)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // shows: META-4
    #[test]
    fn passwords_are_not_shown() {
        let login = Login {
            user: "pluvio".into(),
            password: "secret".into(),
        };
        let shown = format!("{login:?}");
        assert!(shown.contains("pluvio") && !shown.contains("secret"));
    }
}
