//! A Python program that is looked at from outside.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "no test uses all of it")]

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{BufRead as _, BufReader, Write as _},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use cpython::{Memory, Python, Statics, ThreadState, Unreadable, Version, locate, pthread};
use nccl_library::elf::{Image, Machine};

/// `/proc/PID/mem`
pub(crate) struct ProcMemory(File);

impl Memory for ProcMemory {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        self.0.read_exact_at(into, address).map_err(|_| Unreadable(address))
    }
}

/// A Python program that prints a line, and waits for a byte.
pub(crate) struct Subject {
    child: Child,
    input: ChildStdin,
    lines: BufReader<ChildStdout>,
    pub(crate) memory: ProcMemory,
}

impl Subject {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let memory = ProcMemory(File::open(format!("/proc/{}/mem", child.id())).unwrap());
        Self { child, input, lines, memory }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Reads the next line; `None` at the end of the program, which must be a good one.
    pub(crate) fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        if self.lines.read_line(&mut line).unwrap() > 0 {
            return Some(line);
        }
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}");
        None
    }

    pub(crate) fn go_on(&mut self) {
        self.input.write_all(b"\n").unwrap();
    }

    /// Finds the interpreter in it: by the library that it has mapped, or by the program itself.
    pub(crate) fn python(&self) -> Python {
        let (runtime, version, _) = self.runtime();
        Python::at(&self.memory, runtime, version).unwrap()
    }

    /// Finds where the file of the interpreter is mapped.
    fn mapped(&self) -> (PathBuf, u64) {
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.child.id())).unwrap();
        let mut files: BTreeMap<PathBuf, u64> = BTreeMap::new();
        for line in maps.lines() {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            if let [range, _, offset, _, _, path] = words[..]
                && u64::from_str_radix(offset, 16) == Ok(0)
            {
                let (start, _) = range.split_once('-').unwrap();
                files.entry(path.into()).or_insert(u64::from_str_radix(start, 16).unwrap());
            }
        }
        let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let program = fs::read_link(format!("/proc/{}/exe", self.child.id())).unwrap();
        let library = files.keys().find(|path| name(path).starts_with("libpython3."));
        let file = library.unwrap_or(&program).clone();
        let start = files[&file];
        (file, start)
    }

    /// Returns the address of `_PyRuntime`, the version that the file states or is called by, and the file.
    pub(crate) fn runtime(&self) -> (u64, Option<Version>, PathBuf) {
        let (file, start) = self.mapped();
        let image = Image::open(&file).unwrap();
        let found = locate::runtime(&image).unwrap().unwrap();
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let version = found.version.or_else(|| Version::from_file_name(&name));
        (start + found.distance, version, file)
    }

    /// Returns the addresses that lead to the dictionary of interned strings, the file, and how far it lies
    /// above its own addresses.
    pub(crate) fn statics(&self) -> (Statics, Image, u64) {
        let (file, start) = self.mapped();
        let image = Image::open(&file).unwrap();
        let found = locate::runtime(&image).unwrap().unwrap();
        let distance = start - image.base().unwrap().0;
        let (zeroed, bytes) = found.zeroed.unwrap();
        let zeroed = start + zeroed..start + zeroed + bytes;
        (Statics { dict_type: start + found.dict_type.unwrap(), zeroed }, image, distance)
    }

    /// Finds the thread with this number of the kernel's.
    pub(crate) fn thread(&self, threads: &[ThreadState], number: u32) -> ThreadState {
        let is_it = |thread: &&ThreadState| {
            let own = || pthread::thread_numbers(&self.memory, MACHINE, thread.pthread);
            let by_library = || own().first().map(|(_, first)| u64::from(*first));
            thread.native_id.or_else(by_library) == Some(number.into())
        };
        *threads.iter().find(is_it).unwrap()
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const MACHINE: Machine = if cfg!(target_arch = "aarch64") { Machine::Aarch64 } else { Machine::X86_64 };
