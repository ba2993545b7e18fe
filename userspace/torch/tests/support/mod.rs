//! A process that has torch's stand-in loaded, looked at from outside.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "no test uses all of it")]

use std::{
    fs::{self, File},
    os::unix::fs::FileExt as _,
    path::Path,
};

use cpython::{Python, Unreadable, locate};
use nccl_library::elf::Image;
use serde_json::{Value, json};
use test_support::{Interpreter, TorchJob, need_pythons, torch_double};
use torch::{Found, Offsets, Patience, RingReport, Unknown, Version, find, read, shipped};

/// `/proc/PID/mem`
pub(crate) struct ProcMemory(File);

impl cpython::Memory for ProcMemory {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        self.0.read_exact_at(into, address).map_err(|_| Unreadable(address))
    }
}

pub(crate) struct Subject {
    pub(crate) job: TorchJob,
    pub(crate) memory: ProcMemory,
    pub(crate) offsets: Offsets,
    library: u64,
    _folder: tempfile::TempDir,
}

impl Subject {
    /// Starts a Python with the structs of torch 2.`minor`; `None`: the test cannot run.
    pub(crate) fn start(minor: u32, name: &str, environment: &[(&str, &str)]) -> Option<Self> {
        let python: Interpreter = need_pythons()?.pop()?;
        let folder = tempfile::tempdir().unwrap();
        let library = torch_double(folder.path(), minor, name)?;
        let job = TorchJob::start(&python.program, &[&library], environment);
        let memory = ProcMemory(File::open(format!("/proc/{}/mem", job.pid())).unwrap());
        let offsets = shipped(Version::new(2, u8::try_from(minor).unwrap())).unwrap().offsets;
        let library = base(job.pid(), &library);
        Some(Self { job, memory, offsets, library, _folder: folder })
    }

    pub(crate) fn ask(&mut self, command: &Value) -> Value {
        serde_json::from_str(&self.job.ask(&command.to_string())).unwrap()
    }

    pub(crate) fn find(&self) -> Result<Vec<Found>, Unknown> {
        find(&self.memory, self.library, &self.offsets, &|_| true, Patience::default())
    }

    pub(crate) fn read(&self, python: Option<Python>) -> RingReport {
        let found = self.find().unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        read(&self.memory, found[0].address, &self.offsets, python, Patience::default()).unwrap()
    }

    /// Records the collective `number` of the default group, with one tensor.
    pub(crate) fn record(&mut self, number: u64, function: &str) -> Value {
        let created = CREATED + number;
        self.ask(&json!([
            "record",
            0,
            "0",
            "default_pg",
            number,
            0,
            number,
            function,
            created,
            false,
            "6 2 16 4",
            "15 1 64"
        ]))
    }
}

/// Unix time in ns of the first entry.
pub(crate) const CREATED: u64 = 1_700_000_000_000_000_000;

fn base(pid: u32, library: &Path) -> u64 {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let line = maps.lines().find(|line| line.ends_with(library.to_str().unwrap())).unwrap();
    u64::from_str_radix(line.split_once('-').unwrap().0, 16).unwrap()
}

/// Finds the interpreter of a process: by the library that it has mapped, or by the program itself.
pub(crate) fn python_of(pid: u32, memory: &ProcMemory) -> Option<Python> {
    let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap();
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let mapped = |line: &&str| line.split_ascii_whitespace().nth(2) == Some("00000000");
    let path = |line: &str| line.split_ascii_whitespace().nth(5).map(str::to_owned);
    let is_library = |line: &str| path(line).is_some_and(|path| path.contains("/libpython3."));
    let is_program = |line: &str| path(line).as_deref() == program.to_str();
    let line = maps.lines().filter(mapped).find(|line| is_library(line));
    let line = line.or_else(|| maps.lines().filter(mapped).find(|line| is_program(line)))?;
    let (start, file) = (u64::from_str_radix(line.split_once('-')?.0, 16).unwrap(), path(line)?);
    let image = Image::open(Path::new(&file)).unwrap();
    let found = locate::runtime(&image).unwrap()?;
    let name = Path::new(&file).file_name()?.to_string_lossy().into_owned();
    let version = found.version.or_else(|| cpython::Version::from_file_name(&name));
    Some(Python::at(memory, start + found.distance, version).unwrap())
}
