//! Where options come from: defaults < configuration file < environment < flags.
//!
//! A configuration file is TOML with one section a command (`[server]`, `[bench.load]`) and
//! `[global]` for the options of all commands. Keys are the long names of options. The file's
//! values become the defaults of those options before the command line is parsed. So one parser
//! checks all of them with the same words, and the order above holds by itself.
//!
//! A file may serve two programs: sections of commands that another program does are left to it.
//!
//! - CFG-1: a key that no option has is an error that names it and its line.

use crate::failure::Failure;
use crate::handover::{asks_another, is_handed_over};
use crate::output::say;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, Parser};
use std::any::TypeId;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue};

/// The section of options that all commands have.
const GLOBAL: &str = "global";
/// Options that make no sense in a file.
const NOT_IN_FILES: [&str; 5] = ["config", "print-config", "help", "version", "parent"];

/// What the command line asks for.
pub enum Asked<C> {
    /// To do something.
    Do(Box<C>),
    /// To print this text, which is a configuration file.
    Show(String),
}

/// Reads the command line, the environment and the configuration file. `elsewhere` names the
/// sections that are for another program.
///
/// # Errors
/// [`Failure`] when the configuration file cannot be used; a wrong command line ends the
/// process, as do `--help` and `--version`.
pub fn read<C: Parser>(arguments: &[OsString], elsewhere: &[&str]) -> Result<Asked<C>, Failure> {
    let mut command = C::command();
    let file = config_path(arguments);
    let mut keys = toml::Table::new();
    if let Some(path) = &file {
        let text = text_of(path)?;
        keys = parse(path, &text)?;
        command = Sections {
            path,
            text: &text,
            elsewhere,
            globals: globals(&command),
        }
        .apply(command, &keys)?;
    }
    let shown = command.clone();
    let matches = command
        .try_get_matches_from(arguments)
        .unwrap_or_else(|error| wrong(&error, &shown, arguments, file.as_ref()));
    if matches.get_flag("print_config") && !asks_another(&shown, &matches) {
        return Ok(Asked::Show(show(&shown, &matches, &keys)));
    }
    let cli = C::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    Ok(Asked::Do(Box::new(cli)))
}

/// Says what is wrong with a command line, and ends the process. The parser does not know that
/// a value came from the environment or from the configuration file.
fn wrong(
    error: &clap::Error,
    command: &Command,
    arguments: &[OsString],
    file: Option<&PathBuf>,
) -> ! {
    let of_values = matches!(
        error.kind(),
        ErrorKind::InvalidValue | ErrorKind::ValueValidation
    );
    if !of_values {
        error.exit();
    }
    say(in_words(&error.render().to_string()).trim_end());
    if let Some(source) = source(error, command, arguments, file) {
        say(source);
    }
    std::process::exit(error.exit_code());
}

/// The parser's text, with the standard library's words for numbers in ours.
fn in_words(text: &str) -> String {
    text.replace("invalid digit found in string", "not a number")
        .replace("cannot parse integer from empty string", "not a number")
}

/// Where a wrong value came from, if not from the command line.
fn source(
    error: &clap::Error,
    command: &Command,
    arguments: &[OsString],
    file: Option<&PathBuf>,
) -> Option<String> {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let shown = text(ContextKind::InvalidArg)?;
    let long = shown.split([' ', '=']).next()?.strip_prefix("--")?;
    let said = |argument: &&str| {
        let flag = argument.strip_prefix("--");
        flag.and_then(|flag| flag.split('=').next()) == Some(long)
    };
    if arguments
        .iter()
        .filter_map(|a| a.to_str())
        .any(|a| said(&a))
    {
        return None;
    }
    let value = text(ContextKind::InvalidValue)?;
    let variable = variables(command, long).into_iter().find(|variable| {
        let set = std::env::var_os(variable).unwrap_or_default();
        set.to_string_lossy().split(',').any(|part| part == value) || set == value
    });
    match (variable, file) {
        (Some(variable), _) => Some(format!(
            "The value is that of the environment variable {}.",
            variable.to_string_lossy()
        )),
        (None, Some(path)) => Some(format!(
            "The value is that of `{long}` in the configuration file {}.",
            path.display()
        )),
        (None, None) => None,
    }
}

/// The environment variables of all options with this long name.
fn variables(command: &Command, long: &str) -> Vec<OsString> {
    let of_this = command
        .get_arguments()
        .filter(|a| a.get_long() == Some(long));
    let mut found: Vec<OsString> = of_this
        .filter_map(|a| Some(a.get_env()?.to_owned()))
        .collect();
    for sub in command.get_subcommands() {
        found.extend(variables(sub, long));
    }
    found
}

/// The configuration file: the last `--config` before a `--`, or the environment's.
fn config_path(arguments: &[OsString]) -> Option<PathBuf> {
    let mut found = None;
    let mut rest = arguments.iter().skip(1).take_while(|a| *a != "--");
    while let Some(argument) = rest.next() {
        if argument == "--config" {
            found = rest.next().map(PathBuf::from);
        } else if let Some(text) = argument.to_str()
            && let Some(path) = text.strip_prefix("--config=")
        {
            found = Some(PathBuf::from(path));
        }
    }
    found.or_else(|| {
        let path = std::env::var_os("PLUVIO_CONFIG")?;
        (!path.is_empty()).then(|| PathBuf::from(path))
    })
}

fn text_of(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|error| {
        Failure::usage(format!(
            "cannot read the configuration file {}: {error}",
            path.display()
        ))
    })
}

fn parse(path: &Path, text: &str) -> Result<toml::Table, Failure> {
    let shown = path.display();
    text.parse().map_err(|error: toml::de::Error| {
        // The parser's text has several lines that draw the place; one line is enough here.
        let place = error.span().map_or(0, |span| line_at(text, span.start));
        Failure::usage(format!("{shown}, line {place}: {}", error.message()))
    })
}

/// The number of the line of this byte.
fn line_at(text: &str, byte: usize) -> usize {
    text[..byte].matches('\n').count() + 1
}

/// The number of the line of a key, or of a section without keys, that stands below these sections.
fn line_of(text: &str, sections: &[&str], key: &str) -> Option<usize> {
    let mut table = DeTable::parse(text).ok()?.into_inner();
    for section in sections {
        let found = table.remove(*section)?;
        table = match found.into_inner() {
            DeValue::Table(deeper) => deeper,
            _ => return None,
        };
    }
    let (found, _) = table.get_key_value(key)?;
    Some(line_at(text, found.span().start))
}

/// The long names of the options that all commands have.
fn globals(command: &Command) -> Vec<String> {
    let longs = command.get_arguments().filter_map(Arg::get_long);
    longs.map(str::to_owned).collect()
}

/// A configuration file, as far as all of its sections have it in common.
struct Sections<'a> {
    path: &'a Path,
    text: &'a str,
    elsewhere: &'a [&'a str],
    globals: Vec<String>,
}

impl Sections<'_> {
    /// Makes a file's values the defaults of their options.
    fn apply(&self, mut command: Command, file: &toml::Table) -> Result<Command, Failure> {
        for (section, value) in file {
            let toml::Value::Table(keys) = value else {
                return Err(self.wrong(&[], section, format!(
                    "key `{section}` stands outside a section; put it below [{GLOBAL}] or a command's name"
                )));
            };
            command = match section.as_str() {
                GLOBAL => self.section(command, section, keys)?,
                _ => match self.below(&command, section, section, keys)? {
                    Below::Command(changed) => *changed,
                    Below::Elsewhere => command,
                    Below::Nothing => {
                        return Err(self.wrong(&[], section, format!(
                            "unknown section [{section}]; sections are [{GLOBAL}] and the names of commands"
                        )));
                    }
                },
            };
        }
        Ok(command)
    }

    /// The section of a subcommand, if there is one of this name.
    fn below(
        &self,
        command: &Command,
        name: &str,
        section: &str,
        keys: &toml::Table,
    ) -> Result<Below, Failure> {
        if self.elsewhere.contains(&section) {
            return Ok(Below::Elsewhere);
        }
        let Some(sub) = command.find_subcommand(name) else {
            return Ok(Below::Nothing);
        };
        if is_handed_over(sub) {
            return Ok(Below::Elsewhere);
        }
        let sub = self.section(sub.clone(), section, keys)?;
        let changed = command.clone().mut_subcommand(name, |_| sub);
        Ok(Below::Command(Box::new(changed)))
    }

    fn section(
        &self,
        mut command: Command,
        section: &str,
        keys: &toml::Table,
    ) -> Result<Command, Failure> {
        for (key, value) in keys {
            if let toml::Value::Table(deeper) = value {
                let name = format!("{section}.{key}");
                match self.below(&command, key, &name, deeper)? {
                    Below::Command(changed) => {
                        command = *changed;
                        continue;
                    }
                    Below::Elsewhere => continue,
                    Below::Nothing => {}
                }
            }
            let values =
                texts(value).ok_or_else(|| {
                    self.wrong(&within(section), key, format!(
                    "key `{key}` in section [{section}] must be a text, a number, true or false"
                ))
                });
            let argument = command
                .get_arguments()
                .find(|a| a.get_long() == Some(key) && !NOT_IN_FILES.contains(&key.as_str()));
            let Some(argument) = argument else {
                return Err(self.unknown(section, key));
            };
            let (id, values) = (argument.get_id().clone(), values?);
            command = command.mut_arg(id, |a| a.required(false).default_values(values));
        }
        Ok(command)
    }

    fn unknown(&self, section: &str, key: &str) -> Failure {
        let of_all = self.globals.iter().any(|long| long == key) && !NOT_IN_FILES.contains(&key);
        if section != GLOBAL && of_all {
            return self.wrong(&within(section), key, format!(
                "key `{key}` in section [{section}] is an option of all commands; put it below [{GLOBAL}]"
            ));
        }
        let command = match section {
            GLOBAL => String::new(),
            _ => format!("{} ", section.replace('.', " ")),
        };
        self.wrong(&within(section), key, format!(
            "unknown key `{key}` in section [{section}]; keys are the long names of options, see `pluvio {command}--help`"
        ))
    }

    /// A failure that names the file, and the line of `key` below `sections`.
    fn wrong(&self, sections: &[&str], key: &str, what: String) -> Failure {
        let line = line_of(self.text, sections, key);
        let line = line.map_or_else(String::new, |line| format!(", line {line}"));
        Failure::usage(format!("{}{line}: {what}", self.path.display()))
    }
}

/// The tables that a section's name goes through.
fn within(section: &str) -> Vec<&str> {
    section.split('.').collect()
}

/// What a subcommand's section came to.
enum Below {
    /// The command, with the section's values.
    Command(Box<Command>),
    /// Another program reads it.
    Elsewhere,
    /// There is no such subcommand.
    Nothing,
}

/// A value as it would stand on the command line.
fn texts(value: &toml::Value) -> Option<Vec<String>> {
    match value {
        toml::Value::String(text) => Some(vec![text.clone()]),
        toml::Value::Integer(n) => Some(vec![n.to_string()]),
        toml::Value::Float(n) => Some(vec![n.to_string()]),
        toml::Value::Boolean(b) => Some(vec![b.to_string()]),
        toml::Value::Array(all) => {
            let mut found = Vec::new();
            for one in all {
                found.extend(texts(one)?);
            }
            Some(found)
        }
        toml::Value::Datetime(_) | toml::Value::Table(_) => None,
    }
}

/// The options in force, as a configuration file; `file` is the one that was read.
fn show(command: &Command, matches: &ArgMatches, file: &toml::Table) -> String {
    let mut text = String::new();
    let mut path = Vec::new();
    let (mut command, mut matches) = (command.clone(), matches.clone());
    // Globals are known at every level; the innermost knows what was said anywhere.
    let mut innermost = &matches;
    while let Some((_, deeper)) = innermost.subcommand() {
        innermost = deeper;
    }
    let globals: Vec<String> = command
        .get_arguments()
        .filter_map(|a| a.get_long().map(str::to_owned))
        .collect();
    section_text(&mut text, GLOBAL, &command, innermost, &[], file);
    while let Some((name, deeper)) = matches.subcommand() {
        path.push(name.to_owned());
        let next = command.find_subcommand(name).cloned();
        let deeper = deeper.clone();
        let Some(next) = next else { break };
        let section = path.join(".");
        section_text(&mut text, &section, &next, &deeper, &globals, file);
        (command, matches) = (next, deeper);
    }
    text
}

fn section_text(
    text: &mut String,
    section: &str,
    command: &Command,
    matches: &ArgMatches,
    left_out: &[String],
    file: &toml::Table,
) {
    let mut in_file = Some(file);
    for name in section.split('.') {
        in_file = in_file.and_then(|table| table.get(name)?.as_table());
    }
    let mut lines = BTreeMap::new();
    for argument in command.get_arguments() {
        let Some(long) = argument.get_long() else {
            continue;
        };
        if NOT_IN_FILES.contains(&long) || left_out.iter().any(|g| g == long) {
            continue;
        }
        let id = argument.get_id().as_str();
        let Ok(Some(raw)) = matches.try_get_raw(id) else {
            continue;
        };
        let quoted: Vec<String> = raw.map(|value| quote(argument, value)).collect();
        let value = match quoted.as_slice() {
            [] => continue,
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        };
        let source = match matches.value_source(id) {
            Some(ValueSource::CommandLine) => "flag",
            Some(ValueSource::EnvVariable) => "environment",
            _ if in_file.is_some_and(|keys| keys.contains_key(long)) => "file",
            _ => "default",
        };
        lines.insert(long.to_owned(), format!("{long} = {value}  # {source}"));
    }
    if lines.is_empty() {
        return;
    }
    let _infallible = writeln!(text, "[{section}]");
    for line in lines.values() {
        let _infallible = writeln!(text, "{line}");
    }
}

fn quote(argument: &Arg, value: &OsStr) -> String {
    let value = value.to_string_lossy();
    match argument.get_action() {
        ArgAction::SetTrue | ArgAction::SetFalse => value.into_owned(),
        _ => match value.parse::<i64>() {
            // Others may look like a number, such as names; and not every number is one of TOML,
            // such as 007.
            Ok(number) if is_number(argument) => number.to_string(),
            Ok(_) | Err(_) => toml::Value::String(value.into_owned()).to_string(),
        },
    }
}

fn is_number(argument: &Arg) -> bool {
    let of = argument.get_value_parser().type_id();
    let numbers = [
        TypeId::of::<u8>(),
        TypeId::of::<u16>(),
        TypeId::of::<u32>(),
        TypeId::of::<u64>(),
        TypeId::of::<usize>(),
    ];
    numbers.into_iter().any(|number| of == number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handover::HandedOver;
    use crate::options::Global;
    use clap::{Args, CommandFactory, FromArgMatches, Subcommand};
    use pluvio_units::Size;

    /// A program with all that options can be.
    #[derive(Parser, Debug)]
    struct Cli {
        #[command(flatten)]
        global: Global,
        #[command(subcommand)]
        command: Asks,
    }

    #[derive(Subcommand, Debug)]
    enum Asks {
        Server(Server),
        Status,
        #[command(subcommand)]
        Bench(Bench),
        #[command(disable_help_flag = true)]
        Sim(HandedOver),
    }

    #[derive(Args, Debug)]
    struct Server {
        #[arg(long)]
        data: PathBuf,
        #[arg(long, default_value = "256MiB")]
        memory: Size,
        #[arg(long, default_value_t = 3)]
        replicas: u32,
        #[arg(long)]
        rack: Option<String>,
        #[arg(long)]
        pin: bool,
    }

    #[derive(Subcommand, Debug)]
    enum Bench {
        Load {
            #[arg(long, default_value_t = 1)]
            seed: u64,
        },
        #[command(disable_help_flag = true)]
        Store(HandedOver),
    }

    fn apply(text: &str) -> Result<Command, Failure> {
        let file: toml::Table = text.parse().expect("TOML");
        let command = Cli::command();
        let globals = globals(&command);
        let sections = Sections {
            path: Path::new("pluvio.toml"),
            text,
            elsewhere: &["get", "bench.trace"],
            globals,
        };
        sections.apply(command, &file)
    }

    fn parse(file: &str, arguments: &[&str]) -> Result<Cli, String> {
        let command = apply(file).map_err(|f| f.to_string())?;
        let matches = command
            .try_get_matches_from(arguments)
            .map_err(|e| e.to_string())?;
        Cli::from_arg_matches(&matches).map_err(|e| e.to_string())
    }

    fn server(cli: Cli) -> Server {
        match cli.command {
            Asks::Server(server) => server,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn flags_win_over_the_file_and_the_file_over_defaults() {
        let file = "[global]\ncoordinator = \"10.0.0.1:7700\"\n[server]\nmemory = \"1GiB\"\nreplicas = 5\ndata = \"/srv/pluvio\"\npin = true\n";
        let server = |arguments: &[&str]| server(parse(file, arguments).unwrap());
        let plain = server(&["pluvio", "server"]);
        assert_eq!(plain.memory, Size::mib(1024));
        assert_eq!(plain.replicas, 5);
        assert!(plain.pin);
        assert_eq!(
            plain.data,
            PathBuf::from("/srv/pluvio"),
            "needed, but in the file"
        );
        let flagged = server(&["pluvio", "server", "--replicas", "2"]);
        assert_eq!(flagged.replicas, 2);
        assert_eq!(flagged.memory, Size::mib(1024));
        let cli = parse(file, &["pluvio", "status"]).unwrap();
        assert_eq!(cli.global.coordinator, "10.0.0.1:7700");
        let cli = parse(file, &["pluvio", "status", "--coordinator", "b:1"]).unwrap();
        assert_eq!(cli.global.coordinator, "b:1");
        let cli = parse(file, &["pluvio", "--coordinator", "b:1", "status"]).unwrap();
        assert_eq!(cli.global.coordinator, "b:1");
    }

    // shows: CFG-1
    #[test]
    fn unknown_keys_are_named_with_their_lines() {
        for (file, line, named) in [
            ("[server]\nmemry = 1\n", 2, "`memry`"),
            (
                "[server]\nmemory = 1\n\n[sever]\nmemory = 1\n",
                4,
                "[sever]",
            ),
            ("# all\nmemory = 1\n", 2, "`memory`"),
            ("[global]\nconfig = \"x\"\n", 2, "`config`"),
            ("[bench.load]\n\nkees = 1\n", 3, "`kees`"),
            ("[bench]\nload = 1\n", 2, "`load`"),
            ("[server]\nmemory = {}\n", 2, "`memory`"),
            ("[server]\nlog = \"info\"\n", 2, "below [global]"),
        ] {
            let error = parse(file, &["pluvio", "status"]).unwrap_err();
            assert!(error.contains(named), "{file:?}: {error}");
            let line = format!("pluvio.toml, line {line}: ");
            assert!(error.starts_with(&line), "{file:?}: {error}");
        }
    }

    #[test]
    fn sections_of_another_program_are_left_to_it() {
        for file in [
            "[sim]\nseed = 1\n",
            "[get]\nx = 1\n",
            "[bench.store]\nkeys = 1\n[bench.load]\nseed = 7\n",
            "[bench.trace]\nkeys = 1\n",
        ] {
            parse(file, &["pluvio", "status"]).unwrap_or_else(|error| panic!("{file:?}: {error}"));
        }
    }

    #[test]
    fn whatever_is_said_to_another_program_passes() {
        for words in [
            &["pluvio", "sim", "--seed", "7", "--json", "--help"][..],
            &["pluvio", "--json", "sim", "-h"],
            &["pluvio", "bench", "store", "--keys=1", "--", "-x"],
            &["pluvio", "sim"],
            &["pluvio", "sim", "--print-config", "--seed", "x"],
        ] {
            let arguments: Vec<OsString> = words.iter().map(OsString::from).collect();
            let matches = Cli::command().try_get_matches_from(&arguments);
            let matches = matches.unwrap_or_else(|error| panic!("{words:?}: {error}"));
            assert!(asks_another(&Cli::command(), &matches), "{words:?}");
            assert!(matches!(read::<Cli>(&arguments, &[]), Ok(Asked::Do(_))));
        }
    }

    #[test]
    fn bad_values_of_the_file_are_refused_like_those_of_flags() {
        let error = parse(
            "[server]\nmemory = \"1XB\"\n",
            &["pluvio", "server", "--data", "x"],
        );
        assert!(error.unwrap_err().contains("is not a size"));
    }

    #[test]
    fn what_is_shown_can_be_read_again() {
        let mut arguments = vec!["pluvio", "server", "--data", "d", "--memory", "64MiB"];
        arguments.extend(["--pin", "--rack", "007", "--replicas", "007"]);
        let matches = Cli::command().try_get_matches_from(arguments).unwrap();
        let text = show(&Cli::command(), &matches, &toml::Table::new());
        let again = server(parse(&text, &["pluvio", "server"]).unwrap());
        assert_eq!(again.memory, Size::mib(64));
        assert!(again.pin);
        assert_eq!(again.data, PathBuf::from("d"));
        assert_eq!(again.rack.as_deref(), Some("007"));
        assert_eq!(again.replicas, 7);
    }

    #[test]
    fn what_is_shown_says_where_it_came_from() {
        let file = "[global]\ntimeout = \"10s\"\n[server]\ndata = \"d\"\nreplicas = 5\n[bench.load]\nseed = 7\n";
        let keys: toml::Table = file.parse().unwrap();
        let shown = |arguments: &[&str]| {
            let command = apply(file).unwrap();
            let matches = command.clone().try_get_matches_from(arguments).unwrap();
            show(&command, &matches, &keys)
        };
        let text = shown(&["pluvio", "server", "--replicas", "2"]);
        for line in [
            "timeout = \"10s\"  # file",
            "data = \"d\"  # file",
            "replicas = 2  # flag",
            "memory = \"256MiB\"  # default",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line} in {text}");
        }
        let text = shown(&["pluvio", "bench", "load"]);
        assert!(text.contains("seed = 7  # file"), "{text}");
    }

    #[test]
    fn an_error_is_told_with_its_line() {
        for (text, line) in [("[server\n", 1), ("[server]\n= 1\n", 2), ("\n\n a b\n", 3)] {
            let error = super::parse(Path::new("pluvio.toml"), text);
            let error = error.unwrap_err().to_string();
            assert!(
                error.contains(&format!("line {line}:")),
                "{text:?}: {error}"
            );
        }
    }

    #[test]
    fn the_last_config_flag_before_the_double_dash_counts() {
        let words = |list: &[&str]| list.iter().map(OsString::from).collect::<Vec<_>>();
        let path = |list: &[&str]| config_path(&words(list));
        assert_eq!(
            path(&["pluvio", "--config", "a", "get", "--config=b"]),
            Some("b".into())
        );
        assert_eq!(path(&["pluvio", "get", "t", "--", "--config", "b"]), None);
    }
}
