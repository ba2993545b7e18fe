//! Dumps of other hosts: files, folders of them, and standard input. Each can contain several dumps.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};

use crate::fleet::documents;
use dump::{DumpReport, SCHEMA};

/// Most bytes of all that is merged. A dump of 8 ranks with all stacks has some hundred kilobytes.
const MAX_BYTES: u64 = 2 << 30;
/// Most files of a folder.
const MAX_FILES: usize = 1 << 16;
const STANDARD_INPUT: &str = "-";

/// Reads all dumps of these sources.
///
/// # Errors
/// When one cannot be read or has none. In a folder, a file without a dump is reported and left out: one host
/// that gave nothing does not stop the others.
pub(super) fn reports(sources: &[PathBuf]) -> Result<Vec<DumpReport>> {
    let mut all = Vec::new();
    let mut left = MAX_BYTES;
    for source in sources {
        let reading = || format!("reading `{}`", source.display());
        if source.as_os_str() == STANDARD_INPUT {
            all.extend(dumps(io::stdin().lock(), &mut left).context("reading standard input")?);
        } else if fs::metadata(source).with_context(reading)?.is_dir() {
            all.extend(of_folder(source, &mut left).with_context(reading)?);
        } else {
            all.extend(of_file(source, &mut left).with_context(reading)?);
        }
    }
    Ok(all)
}

fn of_file(path: &Path, left: &mut u64) -> Result<Vec<DumpReport>> {
    dumps(File::open(path)?, left)
}

fn of_folder(folder: &Path, left: &mut u64) -> Result<Vec<DumpReport>> {
    let is_dump = |path: &PathBuf| {
        // Files that can block, a pipe for instance, are not opened.
        path.extension().is_some_and(|extension| extension == "json") && path.is_file()
    };
    let entries = fs::read_dir(folder)?.filter_map(|entry| Some(entry.ok()?.path()));
    let mut paths: Vec<PathBuf> = entries.filter(is_dump).take(MAX_FILES + 1).collect();
    if paths.len() > MAX_FILES {
        bail!("it has more than {MAX_FILES} files: give the dumps a folder of their own");
    }
    paths.sort_unstable();
    let mut all = Vec::new();
    for path in &paths {
        match of_file(path, left) {
            Ok(reports) => all.extend(reports),
            Err(error) if *left == 0 => return Err(error),
            Err(error) => tell!("`{}` is left out: {error:#}", path.display()),
        }
    }
    if all.is_empty() {
        bail!("no file there whose name ends with .json is a dump (`ncclflow dump --json`)");
    }
    Ok(all)
}

/// Reads the consecutive dumps of a source. `left`: bytes that may still be read.
fn dumps(source: impl Read, left: &mut u64) -> Result<Vec<DumpReport>> {
    let mut text = Vec::new();
    let read = source.take(left.saturating_add(1)).read_to_end(&mut text)?;
    *left = left.saturating_sub(read as u64);
    if *left == 0 {
        bail!("all dumps together have more than {MAX_BYTES} bytes");
    }
    let all = documents(&text, "dump", SCHEMA)?;
    if all.is_empty() {
        bail!("it is empty: the dump that should have written it has failed");
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dump(host: &str) -> String {
        let report = DumpReport { schema: SCHEMA, hosts: vec![host.to_owned()], ..DumpReport::default() };
        serde_json::to_string_pretty(&report).unwrap()
    }

    fn hosts(sources: &[PathBuf]) -> Result<Vec<String>> {
        Ok(reports(sources)?.into_iter().flat_map(|report| report.hosts).collect())
    }

    #[test]
    fn files_folders_and_several_dumps_in_one_file_are_merged_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir(path("all")).unwrap();
        fs::write(path("all/b.json"), dump("b")).unwrap();
        fs::write(path("all/a.json"), dump("a")).unwrap();
        fs::write(path("all/notes.txt"), "none").unwrap();
        fs::write(path("two"), format!("{}\n{}\n", dump("c"), dump("d"))).unwrap();
        assert_eq!(hosts(&[path("two"), path("all")]).unwrap(), ["c", "d", "a", "b"]);
    }

    #[test]
    fn a_host_that_gave_nothing_does_not_stop_the_others_of_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("a.json"), "").unwrap();
        assert!(format!("{:#}", hosts(&[folder.path().to_path_buf()]).unwrap_err()).contains("is a dump"));
        fs::write(path("b.json"), dump("b")).unwrap();
        fs::write(path("c.json"), "[]").unwrap();
        assert_eq!(hosts(&[folder.path().to_path_buf()]).unwrap(), ["b"]);
        // Given by itself it is an error.
        assert!(format!("{:#}", hosts(&[path("a.json")]).unwrap_err()).contains("it is empty"));
        assert!(
            format!("{:#}", hosts(&[path("c.json")]).unwrap_err())
                .contains("not a document of `ncclflow dump")
        );
    }

    #[test]
    fn there_is_an_end_to_what_is_read() {
        let mut left = 1000;
        let endless = dumps(io::repeat(b' '), &mut left).unwrap_err();
        assert!(endless.to_string().contains("together have more than"), "{endless}");
        let mut left = 100;
        assert!(dumps(dump("a").as_bytes(), &mut left).is_err());
    }
}
