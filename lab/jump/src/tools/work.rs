//! A tool: one step over the alignments, in one way of keeping them. Each is a process of its own,
//! which begins with what the one before it has left.

use super::binary::{self, File as Binary};
use super::record::{Loaded, Records};
use super::steps::{self, Index};
use super::{span, text};
use crate::error::{JumpError, Result};
use crate::raw::{Mapping, Pages};
use pluvio_units::KeyHash;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

/// How alignments are kept between programs.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// In the heap of a span
    Space,
    /// In a binary file that is mapped, with orders beside it
    Mapped,
    /// In a binary file that is read and written whole
    Binary,
    /// In a text file
    Text,
}

/// What a tool does.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Makes what the way keeps, from the text
    Convert,
    /// Counts by flags
    Flagstat,
    /// Puts the records in order by name
    SortName,
    /// Puts the records in order by position
    SortPosition,
    /// Makes an index of the records that are in order by position
    Index,
}

/// All ways.
pub(crate) const WAYS: [Way; 4] = [Way::Space, Way::Mapped, Way::Binary, Way::Text];
/// All steps behind the conversion, in their order.
pub(crate) const STEPS: [Step; 4] = [
    Step::Flagstat,
    Step::SortName,
    Step::SortPosition,
    Step::Index,
];

impl Way {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Space => "space",
            Self::Mapped => "mapped file",
            Self::Binary => "binary file",
            Self::Text => "text file",
        }
    }

    /// As the command line has it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Space => "space",
            Self::Mapped => "mapped",
            Self::Binary => "binary",
            Self::Text => "text",
        }
    }
}

impl Step {
    /// As the command line has it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Convert => "convert",
            Self::Flagstat => "flagstat",
            Self::SortName => "sort-name",
            Self::SortPosition => "sort-position",
            Self::Index => "index",
        }
    }
}

/// The names of files: `reads`, `name` and `position`, each with the way's ending.
pub(crate) const READS: &str = "reads";
const NAME: &str = "name";
const POSITION: &str = "position";

fn read(folder: &Path, file: &str) -> Result<Vec<u8>> {
    let path = folder.join(file);
    let bytes = std::fs::read(&path);
    bytes.map_err(|error| JumpError::system(format!("read {}", path.display()), error))
}

/// Writes a file that takes the place of the one before.
fn write(
    folder: &Path,
    file: &str,
    fill: impl FnOnce(&mut BufWriter<File>) -> std::io::Result<()>,
) -> Result<()> {
    let path = folder.join(file);
    let failed = |error| JumpError::system(format!("write {}", path.display()), error);
    let mut into = BufWriter::with_capacity(1 << 18, File::create(&path).map_err(failed)?);
    fill(&mut into).and_then(|()| into.flush()).map_err(failed)
}

fn words<const N: usize>(numbers: impl Iterator<Item = [u8; N]>) -> Vec<u8> {
    numbers.flatten().collect()
}

fn write_order(folder: &Path, file: &str, order: &[u32]) -> Result<()> {
    let bytes = words(order.iter().map(|number| number.to_le_bytes()));
    write(folder, file, |into| into.write_all(&bytes))
}

fn read_order(folder: &Path, file: &str) -> Result<Vec<u32>> {
    let bytes = read(folder, file)?;
    let fours = bytes.chunks_exact(4);
    Ok(fours
        .map(|four| u32::from_le_bytes([four[0], four[1], four[2], four[3]]))
        .collect())
}

/// An index in a file: how many counts there are, the counts, and the windows.
fn write_index(folder: &Path, file: &str, index: &Index) -> Result<()> {
    let mut bytes = (index.counts.len() as u64).to_le_bytes().to_vec();
    bytes.extend(words(index.counts.iter().map(|count| count.to_le_bytes())));
    bytes.extend(words(index.first.iter().map(|first| first.to_le_bytes())));
    write(folder, file, |into| into.write_all(&bytes))
}

fn read_index(folder: &Path, file: &str) -> Result<Index> {
    let bytes = read(folder, file)?;
    let mut eights = bytes
        .chunks_exact(8)
        .filter_map(|eight| eight.try_into().ok());
    let mut word = || eights.next().map_or(0, u64::from_le_bytes);
    let count = word() as usize;
    let counts: Vec<u64> = (0..count).map(|_| word()).collect();
    let windows = bytes
        .get(8 * (count + 1)..)
        .unwrap_or_default()
        .chunks_exact(4);
    Ok(Index {
        counts,
        first: windows
            .map(|four| u32::from_le_bytes([four[0], four[1], four[2], four[3]]))
            .collect(),
    })
}

/// Opens a binary file without reading it.
fn map(folder: &Path, file: &str) -> Result<Mapping> {
    let path = folder.join(file);
    let failed = |error| JumpError::system(format!("map {}", path.display()), error);
    let file = File::options()
        .read(true)
        .write(true)
        .open(&path)
        .map_err(failed)?;
    let length = file.metadata().map_err(failed)?.len() as usize;
    Mapping::of_file(&file, 0, length, Pages::Lazy)
}

/// The bytes of a mapped file of an experiment.
#[allow(unsafe_code)] // nobody else writes
fn bytes_of(mapping: &Mapping) -> &[u8] {
    // SAFETY: the folder belongs to the experiment, whose tools run one after the other. This one
    // does not write that file.
    unsafe { mapping.bytes() }
}

/// Records of their own memory, from a text or binary file.
fn load(way: Way, folder: &Path, file: &str) -> Result<Vec<Loaded>> {
    match way {
        Way::Text => text::parse(&read(folder, &format!("{file}.sam"))?),
        Way::Binary | Way::Mapped | Way::Space => {
            Binary::new(&read(folder, &format!("{file}.bin"))?)?.load()
        }
    }
}

fn save(way: Way, folder: &Path, file: &str, records: &[Loaded], order: &[u32]) -> Result<()> {
    let order = order.iter().map(|&number| number as usize);
    match way {
        Way::Text => {
            let sorted = match file {
                NAME => "queryname",
                _ => "coordinate",
            };
            write(folder, &format!("{file}.sam"), |into| {
                text::write(records, order, sorted, into)
            })
        }
        Way::Binary | Way::Mapped | Way::Space => write(folder, &format!("{file}.bin"), |into| {
            binary::write(records, order, into)
        }),
    }
}

/// Does a step, and gives what it counts, as lines; other steps give nothing.
///
/// # Errors
/// A file or a span failed.
pub(crate) fn work(way: Way, step: Step, folder: &Path) -> Result<String> {
    let counts = match step {
        Step::Flagstat => flagstat(way, folder)?,
        Step::Convert => return convert(way, folder).map(|()| String::new()),
        other => return leave(way, other, folder).map(|()| String::new()),
    };
    let lines = counts.iter().map(|[good, bad]| format!("{good} + {bad}\n"));
    Ok(lines.collect())
}

fn flagstat(way: Way, folder: &Path) -> Result<[[u64; 2]; steps::COUNTS]> {
    match way {
        Way::Space => span::flagstat(folder),
        Way::Mapped => {
            let mapping = map(folder, "reads.bin")?;
            Ok(steps::flagstat(&Binary::new(bytes_of(&mapping))?))
        }
        Way::Text | Way::Binary => Ok(steps::flagstat(&load(way, folder, READS)?[..])),
    }
}

/// Does a step that leaves an order or an index.
fn leave(way: Way, step: Step, folder: &Path) -> Result<()> {
    match way {
        Way::Space => leave_in_span(step, folder),
        Way::Mapped => leave_beside(step, folder),
        Way::Text | Way::Binary => leave_in_files(way, step, folder),
    }
}

fn leave_in_span(step: Step, folder: &Path) -> Result<()> {
    match step {
        Step::SortName => span::sort_by_name(folder),
        Step::SortPosition => span::sort_by_position(folder),
        Step::Index => span::index(folder),
        Step::Convert | Step::Flagstat => Ok(()),
    }
}

/// Orders and index of a mapped file lie beside it.
fn leave_beside(step: Step, folder: &Path) -> Result<()> {
    let mapping = map(folder, "reads.bin")?;
    let records = Binary::new(bytes_of(&mapping))?;
    match step {
        Step::SortName => write_order(folder, "name.order", &steps::by_name(&records)),
        Step::SortPosition => write_order(folder, "position.order", &steps::by_position(&records)),
        Step::Index => {
            let order = read_order(folder, "position.order")?;
            write_index(folder, "mapped.index", &steps::index(&records, &order))
        }
        Step::Convert | Step::Flagstat => Ok(()),
    }
}

/// Records in order are a file of their own.
fn leave_in_files(way: Way, step: Step, folder: &Path) -> Result<()> {
    match step {
        Step::SortName => {
            let records = load(way, folder, READS)?;
            save(way, folder, NAME, &records, &steps::by_name(&records[..]))
        }
        Step::SortPosition => {
            let records = load(way, folder, READS)?;
            let order = steps::by_position(&records[..]);
            save(way, folder, POSITION, &records, &order)
        }
        Step::Index => {
            let records = load(way, folder, POSITION)?;
            let order: Vec<u32> = (0..records.len() as u32).collect();
            let index = steps::index(&records[..], &order);
            write_index(folder, &format!("{}.index", way.word()), &index)
        }
        Step::Convert | Step::Flagstat => Ok(()),
    }
}

/// From the text to what the way keeps.
fn convert(way: Way, folder: &Path) -> Result<()> {
    match way {
        Way::Text => Ok(()),
        Way::Binary | Way::Mapped => {
            let records = load(Way::Text, folder, READS)?;
            let order: Vec<u32> = (0..records.len() as u32).collect();
            save(Way::Binary, folder, READS, &records, &order)
        }
        Way::Space => {
            span::remove(folder)?;
            span::import(folder, &load(Way::Text, folder, READS)?)
        }
    }
}

/// What the steps of a way have left: a number for each order, and the index.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Results {
    pub(crate) by_name: u64,
    pub(crate) by_position: u64,
    pub(crate) index: Index,
}

/// A number for records in an order: of their lines.
pub(crate) fn digest_of(records: &(impl Records + ?Sized), order: &[u32]) -> u64 {
    let (mut digest, mut line) = (order.len() as u64, Vec::new());
    for number in order.iter().map(|&number| number as usize) {
        line.clear();
        text::line_of(&records.core(number), records.tail(number), &mut line);
        digest = KeyHash::of(digest, &line).0;
    }
    digest
}

/// Reads what a way has left.
pub(crate) fn results(way: Way, folder: &Path) -> Result<Results> {
    let (by_name, by_position, index) = match way {
        Way::Space => return span::results(folder),
        Way::Mapped => {
            let mapping = map(folder, "reads.bin")?;
            let records = Binary::new(bytes_of(&mapping))?;
            let of = |file| Ok::<_, JumpError>(digest_of(&records, &read_order(folder, file)?));
            let index = read_index(folder, "mapped.index")?;
            (of("name.order")?, of("position.order")?, index)
        }
        Way::Binary | Way::Text => {
            let of = |file| {
                let records = load(way, folder, file)?;
                let order: Vec<u32> = (0..records.len() as u32).collect();
                Ok::<_, JumpError>(digest_of(&records[..], &order))
            };
            let index = read_index(folder, &format!("{}.index", way.word()))?;
            (of(NAME)?, of(POSITION)?, index)
        }
    };
    Ok(Results {
        by_name,
        by_position,
        index,
    })
}
