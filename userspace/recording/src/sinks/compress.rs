//! Compression of line files that are complete.

use flow::session::Compressed;
use std::io;

use flate2::{Compression, write::GzEncoder};

use super::{
    budget::{Share, is_over_max_size},
    output_dir::OutputDir,
    session_files::SessionFiles,
};

/// Three times as fast as the default, for files that are a tenth larger: the job needs the processor more
/// than we do.
const LEVEL: Compression = Compression::new(3);

/// Ending of a compressed file's name.
const COMPRESSED: &str = ".gz";

/// Compresses all files of JSON lines, which are complete. Also returns errors.
pub fn compress_files(files: &SessionFiles) -> (Compressed, Vec<String>) {
    let (mut done, mut errors) = (Compressed::default(), Vec::new());
    let Some(dir) = files.dir().filter(|dir| !dir.is_removed()) else { return (done, errors) };
    for (folder, name) in files.files() {
        let opened = if folder.is_empty() { dir.try_clone() } else { dir.open_below(&folder) };
        match opened.and_then(|folder| compress(&folder, &name)) {
            Ok((bytes, compressed_bytes)) => {
                done.files += 1;
                done.bytes += bytes;
                done.compressed_bytes += compressed_bytes;
            }
            Err(error) if is_over_max_size(&error) => done.files_left += 1,
            Err(error) => errors.push(format!("compressing `{folder}/{name}`: {error}")),
        }
    }
    (done, errors)
}

/// Replaces the file by its compressed form, once that is on the disk under its name. Returns the bytes of
/// both.
fn compress(dir: &OutputDir, name: &str) -> io::Result<(u64, u64)> {
    let mut lines = dir.open_file(name)?;
    let (mut bytes, mut compressed_bytes) = (0, 0);
    dir.add_file(Share::Compressed, &format!("{name}{COMPRESSED}"), |file| {
        let mut encoder = GzEncoder::new(&mut *file, LEVEL);
        bytes = io::copy(&mut lines, &mut encoder)?;
        encoder.finish()?;
        compressed_bytes = file.len();
        Ok(())
    })?;
    dir.remove_made(name)?;
    Ok((bytes, compressed_bytes))
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        io::{Read as _, Write as _},
    };

    use flate2::read::GzDecoder;

    use super::*;

    fn folder(limit: Option<u64>, lines: &str) -> (tempfile::TempDir, OutputDir) {
        let parent = tempfile::tempdir().unwrap();
        let dir = OutputDir::create(&parent.path().join("out")).unwrap();
        let dir = match limit {
            Some(limit) => dir.limited(limit, false).unwrap(),
            None => dir,
        };
        dir.create_file("a.jsonl").unwrap().write_all(lines.as_bytes()).unwrap();
        (parent, dir)
    }

    /// Lines that can hardly be compressed.
    fn noise(bytes: usize) -> String {
        let mut state = 1u64;
        let mut text = String::new();
        while text.len() < bytes {
            for _ in 0..8 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                text.push(char::from(b'0' + u8::try_from(state >> 58).unwrap()));
            }
            text.push('\n');
        }
        text
    }

    #[test]
    fn the_compressed_file_takes_the_place_of_the_file() {
        let lines = "{\"seq\":2,\"step\":0}\n".repeat(10_000);
        let (_parent, dir) = folder(Some(4 << 20), &lines);
        let used = dir.budget().unwrap().report().used_bytes;
        let (bytes, compressed_bytes) = compress(&dir, "a.jsonl").unwrap();
        assert_eq!(bytes, lines.len() as u64);
        assert_eq!(compressed_bytes, fs::metadata(dir.path().join("a.jsonl.gz")).unwrap().len());
        assert!(compressed_bytes * 10 < bytes);
        assert_eq!(dir.names().unwrap(), ["a.jsonl.gz"]);
        let mut text = String::new();
        GzDecoder::new(dir.open_file("a.jsonl.gz").unwrap()).read_to_string(&mut text).unwrap();
        assert_eq!(text, lines);
        let budget = dir.budget().unwrap();
        assert_eq!(used - budget.report().used_bytes, budget.cost(bytes) - budget.cost(compressed_bytes));
    }

    #[test]
    fn without_room_for_both_the_file_stays_as_it_was() {
        let lines = noise(800_000);
        let (_parent, dir) = folder(Some(1 << 20), &lines);
        let used = dir.budget().unwrap().report().used_bytes;
        let error = compress(&dir, "a.jsonl").unwrap_err();
        assert!(is_over_max_size(&error), "{error}");
        assert_eq!(dir.names().unwrap(), ["a.jsonl"]);
        assert_eq!(fs::read_to_string(dir.path().join("a.jsonl")).unwrap(), lines);
        assert_eq!(dir.budget().unwrap().report().used_bytes, used);
    }

    #[test]
    fn what_has_the_name_already_is_not_overwritten() {
        for limit in [None, Some(4 << 20)] {
            let (_parent, dir) = folder(limit, "line\n");
            fs::write(dir.path().join("a.jsonl.gz"), "precious").unwrap();
            assert_eq!(compress(&dir, "a.jsonl").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
            assert_eq!(fs::read_to_string(dir.path().join("a.jsonl.gz")).unwrap(), "precious");
            assert_eq!(fs::read_to_string(dir.path().join("a.jsonl")).unwrap(), "line\n");
            assert_eq!(dir.names().unwrap(), ["a.jsonl", "a.jsonl.gz"]);
        }
    }
}
