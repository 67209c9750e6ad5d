//! How the programs behind `cargo xtask day`, `soak`, `beside-redis` and `server-time` begin: flags
//! with values, and an exit code.

use std::process::ExitCode;
use std::str::FromStr;

/// A value that a flag was given.
pub struct Value {
    flag: String,
    text: String,
}

impl Value {
    /// The value as it was written.
    #[allow(dead_code, reason = "one of the programs takes numbers only")]
    pub fn text(self) -> String {
        self.text
    }

    /// The value as a number.
    pub fn number<N: FromStr>(&self) -> Result<N, String> {
        let number = self.text.parse();
        number.map_err(|_| format!("{}: {} is no number", self.flag, self.text))
    }
}

/// Reads the flags of this process into `asked`, then runs the program. `set` takes one flag, and
/// gives false for a flag it does not know. Nonsense is told with `help` and exit code 2.
pub fn main<A>(
    help: &str,
    mut asked: A,
    set: impl Fn(&mut A, &str, Value) -> Result<bool, String>,
    run: impl FnOnce(A) -> ExitCode,
) -> ExitCode {
    match read(std::env::args().skip(1), &mut asked, set) {
        Ok(()) => run(asked),
        Err(problem) => {
            eprintln!("error: {problem}\n{help}");
            ExitCode::from(2)
        }
    }
}

fn read<A>(
    mut words: impl Iterator<Item = String>,
    asked: &mut A,
    set: impl Fn(&mut A, &str, Value) -> Result<bool, String>,
) -> Result<(), String> {
    while let Some(flag) = words.next() {
        let text = words.next().ok_or(format!("{flag} needs a value"))?;
        let value = Value {
            flag: flag.clone(),
            text,
        };
        if !set(asked, &flag, value)? {
            return Err(format!("no flag {flag}"));
        }
    }
    Ok(())
}
