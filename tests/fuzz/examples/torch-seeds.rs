//! Makes seeds for the target `torch`: what is read of the memory of a process that has a stand-in of torch's libraries
//! loaded (`tests/torch-double`), which has taken notes.
//!
//! `torch-seeds FOLDER PYTHON`

use std::{error::Error, fs, path::Path};

use cpython::{Python, Version, locate};
use nccl_library::elf::Image;
use ncclflow_fuzz::{
    kept_memory::KeptMemory,
    torch::{Start, input_of, rings_of},
};
use test_support::{TorchJob, torch_double};
use torch::Patience;

/// Without and with `std::string` as in C++11; with the table of rings of other backends.
const VERSIONS: [u8; 3] = [5, 11, 15];
const ENTRIES: usize = 4;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or("the folder for the seeds")?;
    let python = arguments.next().ok_or("a Python")?;
    for minor in VERSIONS {
        let seed = seed_of(&python, minor)?;
        let rings = rings_of(&seed).unwrap_or_default();
        let entries: Vec<usize> = rings.iter().map(|ring| ring.entries.len()).collect();
        let has_frames = rings.iter().flat_map(|ring| &ring.entries).any(|entry| entry.frames.is_some());
        if entries != [ENTRIES] || !has_frames {
            return Err(
                format!("torch 2.{minor}: the seed has entries {entries:?}; frames: {has_frames}").into()
            );
        }
        fs::write(Path::new(&folder).join(format!("torch-2.{minor}")), seed)?;
    }
    Ok(())
}

fn seed_of(python: &str, minor: u8) -> Result<Vec<u8>, Box<dyn Error>> {
    let folder = std::env::temp_dir().join(format!("ncclflow-torch-seeds.{}", std::process::id()));
    let seed = made(python, minor, &folder);
    fs::remove_dir_all(&folder)?;
    seed
}

fn made(python: &str, minor: u8, folder: &Path) -> Result<Vec<u8>, Box<dyn Error>> {
    let library = torch_double(folder, minor.into(), "libtorch_cuda.so").ok_or("no compiler")?;
    let size = ENTRIES.to_string();
    let mut job = TorchJob::start(Path::new(python), &[&library], &[("TORCH_FR_BUFFER_SIZE", &size)]);
    job.ask(r#"["group", "0", "default_pg", "0 1"]"#);
    job.ask(r#"["group", "1", "a group with a long description", "0 1 2 3"]"#);
    job.ask(r#"["status", 0, 4, 4, 4, "REDUCE_SCATTER_BASE_OF_MANY", 64]"#);
    for number in 0..ENTRIES + 2 {
        job.ask(&format!(
            r#"["record", 0, "0", "default_pg", {number}, 0, {number}, "nccl:all_reduce", 1700000000000000000, false, "6 2 16 4", "15 1 64"]"#
        ));
    }
    let memory = KeptMemory::of(job.pid())?;
    let maps = fs::read_to_string(format!("/proc/{}/maps", job.pid()))?;
    let begin = |is_it: &dyn Fn(&str) -> bool| {
        maps.lines().find_map(|line| {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            let [range, _, offset, _, _, path] = words[..] else { return None };
            let start = u64::from_str_radix(range.split_once('-')?.0, 16).ok()?;
            (offset.bytes().all(|byte| byte == b'0') && is_it(path)).then(|| (path.to_owned(), start))
        })
    };
    let (_, base) = begin(&|path| Path::new(path) == library).ok_or("the stand-in is not mapped")?;
    // The program or its library, whichever has the interpreter.
    let (runtime, version) =
        [&(|path: &str| path.contains("/libpython3.")) as &dyn Fn(&str) -> bool, &|path| {
            path.contains("/python3")
        }]
        .into_iter()
        .find_map(|is_it| {
            let (path, start) = begin(is_it)?;
            let image = Image::open(path.as_ref()).ok()?;
            let found = locate::runtime(&image).ok()??;
            let name = Path::new(&path).file_name()?.to_string_lossy().into_owned();
            let version = found.version.or_else(|| Version::from_file_name(&name));
            Some((start + found.distance, version))
        })
        .ok_or("no interpreter is mapped")?;
    let offsets = torch::shipped(torch::Version::new(2, minor)).ok_or("no such torch")?.offsets;
    let may_be_data = |address: u64| {
        maps.lines().any(|line| {
            let Some((start, end)) = line.split_once(' ').and_then(|(range, _)| range.split_once('-')) else {
                return false;
            };
            let [start, end] = [start, end].map(|text| u64::from_str_radix(text, 16).unwrap_or(0));
            (start..end).contains(&address) && line.contains("rw-p")
        })
    };
    let found = torch::find(&memory, base, &offsets, &may_be_data, Patience::default())?;
    let ring = found.first().ok_or("no ring")?.address;
    let python = Python::at(&memory, runtime, version)?;
    torch::read(&memory, ring, &offsets, Some(python), Patience::default())?;
    let start = Start { torch: minor, python: python.offsets.version.minor, ring, library: base, runtime };
    let pieces = memory.pieces.borrow();
    Ok(input_of(start, &pieces))
}
