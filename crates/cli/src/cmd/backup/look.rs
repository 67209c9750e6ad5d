//! A look at archives that are there, and an end of some.

use super::archiver::{Written, on_disk};
use super::{ticks, unusable};
use pluvio_archive::{Consistency, Manifest, Place, records};
use pluvio_console::failure::Failure;
use pluvio_console::options::Global;
use pluvio_console::output::{
    bytes, number_of, print_json, print_line, say, spinner, table as new_table, table_text, time,
};
use pluvio_console::session::with_runtime;
use serde_json::json;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

/// Says what is left out because no archive has such a name.
pub fn tell_foreign(place: &Place) -> Result<(), Failure> {
    for path in place.foreign().map_err(unusable)? {
        say(format_args!(
            "{}: no archive has this name; it is left out",
            path.display()
        ));
    }
    Ok(())
}

/// Reads all of an archive, and compares it with its checksums and counts.
pub fn verify(place: &Place, manifest: &Manifest) -> Result<(), Failure> {
    let progress = spinner("verifying");
    for table in &manifest.tables {
        let mut found = (0, 0);
        for pack in &table.packs {
            let bytes = place.pack(pack).map_err(unusable)?;
            let path = place.path_of(pack);
            for object in records(&path, &bytes).map_err(unusable)? {
                let object = object.map_err(unusable)?;
                found.0 += 1;
                found.1 += (object.key.len() + object.value.len()) as u64;
            }
            progress.inc(pack.objects);
        }
        if found != (table.objects, table.bytes) {
            progress.finish_and_clear();
            return Err(Failure::new(format!(
                "archive {}: table {:?} has {} and {} instead of {} and {}; use another archive",
                manifest.id,
                table.name,
                number_of(found.0, "object"),
                bytes(found.1),
                number_of(table.objects, "object"),
                bytes(table.bytes),
            )));
        }
    }
    progress.finish_and_clear();
    Ok(())
}

/// Removes all archives of each cluster but the newest ones, and what no archive names.
pub(super) fn prune(
    global: &Global,
    place: Place,
    keep: NonZeroUsize,
    dry_run: bool,
) -> Result<(), Failure> {
    let pruned = with_runtime(1, &global.tls, move |env| async move {
        let clock = Arc::clone(&env.clock);
        let work = move || place.prune(keep, dry_run, &ticks(&*clock));
        on_disk(&env, work).await
    })?;
    if global.json {
        return print_json(&json!({
            "kept": pruned.kept,
            "archives": pruned.archives,
            "files": pruned.files,
            "bytes": pruned.bytes,
            "dry_run": dry_run,
        }));
    }
    let is_done = match dry_run {
        true => "would be removed",
        false => "removed",
    };
    for id in &pruned.archives {
        print_line(&format!("archive {id} {is_done}"))?;
    }
    let kept = pruned.kept as u64;
    print_line(&format!(
        "{} {is_done} with {}, {} {}",
        number_of(pruned.files, "pack"),
        bytes(pruned.bytes),
        number_of(kept, "archive"),
        if kept == 1 { "stays" } else { "stay" },
    ))
}

/// Lists the archives of a place. Those that cannot be read are listed with the reason.
pub(super) fn list(place: &Place, json: bool) -> Result<(), Failure> {
    tell_foreign(place)?;
    let ids = place.ids().map_err(unusable)?;
    let read = ids
        .into_iter()
        .map(|id| (place.manifest(Some(&id)).map_err(|e| e.to_string()), id));
    if json {
        let archives = read.map(|(manifest, id)| match manifest {
            Ok(manifest) => as_json(&manifest),
            Err(error) => json!({ "archive": id, "error": error }),
        });
        return print_json(&json!({ "archives": archives.collect::<Vec<_>>() }));
    }
    let mut text = new_table(
        &[
            "archive",
            "tables",
            "objects",
            "took",
            "all tables",
            "moment",
        ],
        &[1, 2],
    );
    for (manifest, id) in read {
        text.add_row(match manifest {
            Ok(manifest) => vec![
                id,
                manifest.tables.len().to_string(),
                manifest.objects().to_string(),
                time(took(&manifest)),
                if manifest.all_tables { "yes" } else { "no" }.to_owned(),
                match manifest.consistency {
                    Consistency::OneMoment => "one",
                    Consistency::EachObject => "each object's own",
                }
                .to_owned(),
            ],
            Err(error) => vec![id, error],
        });
    }
    print_line(&table_text(&text))
}

fn took(manifest: &Manifest) -> Duration {
    Duration::from_millis(manifest.ended_ms.saturating_sub(manifest.began_ms))
}

fn as_json(manifest: &Manifest) -> serde_json::Value {
    json!({
        "archive": manifest.id,
        "cluster": manifest.cluster,
        "began_ms": manifest.began_ms,
        "ended_ms": manifest.ended_ms,
        "consistency": manifest.consistency,
        "held_us": manifest.held_us,
        "all_tables": manifest.all_tables,
        "objects": manifest.objects(),
        "tables": manifest.tables.iter().map(|table| json!({
            "name": table.name,
            "durability": table.durability,
            "objects": table.objects,
            "bytes": table.bytes,
            "newest_version": table.newest_version,
            "packs": table.packs.len(),
        })).collect::<Vec<_>>(),
    })
}

/// Says what became of an archive.
pub(super) fn show(
    manifest: &Manifest,
    what: &str,
    written: Option<(&Written, Duration)>,
    json: bool,
) -> Result<(), Failure> {
    if json {
        let mut shown = as_json(manifest);
        if let Some((written, _)) = written {
            shown["new_bytes"] = written.new_bytes.into();
            shown["known_bytes"] = written.known_bytes.into();
        }
        return print_json(&shown);
    }
    let mut text = format!(
        "archive {} {what}: {} in {}",
        manifest.id,
        number_of(manifest.objects(), "object"),
        number_of(manifest.tables.len() as u64, "table"),
    );
    text += &format!(", {}", moment_of(manifest));
    if let Some((written, took)) = written {
        text += &format!(
            ", {} written, {} were there, in {}",
            bytes(written.new_bytes),
            bytes(written.known_bytes),
            time(took)
        );
        if let Some(held) = manifest.held_us {
            let held = time(Duration::from_micros(held));
            text += &format!("; writes stood still for {held}");
        }
    }
    print_line(&text)
}

/// How the objects of an archive belong together.
pub fn moment_of(manifest: &Manifest) -> &'static str {
    match manifest.consistency {
        Consistency::OneMoment => "all as they were at one moment",
        Consistency::EachObject => "each as it was at a moment of its own",
    }
}
