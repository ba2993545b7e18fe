//! Makes seeds for the target `python`: what is read of a running interpreter's memory.
//!
//! `python-seeds FOLDER PYTHON…`

use std::{
    error::Error,
    fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Command, Stdio},
};

use cpython::{Python, Version, Walker, locate};
use nccl_library::elf::Image;
use ncclflow_fuzz::{
    kept_memory::KeptMemory,
    python::{input_of, walk},
};

const PROGRAM: &str = "
import os, threading
def wait(number):
    os.read(0, 1) if number == 0 else threading.Event().wait()
threading.Thread(target=lambda: wait(1), daemon=True).start()
def generate():
    yield wait(0)
print('ready', flush=True)
[None for _ in generate()]
";

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().ok_or("the folder for the seeds")?;
    for program in arguments {
        let (version, seed) = seed_of(&program)?;
        let frames = walk(&seed).unwrap_or(0);
        if frames < 4 {
            return Err(format!("{program}: the seed has {frames} frames").into());
        }
        fs::write(Path::new(&folder).join(format!("python-{version}")), seed)?;
    }
    Ok(())
}

fn seed_of(program: &str) -> Result<(Version, Vec<u8>), Box<dyn Error>> {
    let mut command = Command::new(program);
    let mut child =
        command.args(["-I", "-c", PROGRAM]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().ok_or("no output")?).read_line(&mut line)?;
    let seed = read(child.id());
    child.kill()?;
    child.wait()?;
    seed
}

fn read(pid: u32) -> Result<(Version, Vec<u8>), Box<dyn Error>> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let files = maps.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let [range, _, offset, _, _, path] = words[..] else { return None };
        let start = u64::from_str_radix(range.split_once('-')?.0, 16).ok()?;
        (offset.bytes().all(|byte| byte == b'0') && path.contains("python3"))
            .then(|| (path.to_owned(), start))
    });
    for (path, start) in files {
        let Ok(image) = Image::open(path.as_ref()) else { continue };
        let Some(found) = locate::runtime(&image)? else { continue };
        let name = Path::new(&path).file_name().unwrap_or_default().to_string_lossy();
        let version = found.version.or_else(|| Version::from_file_name(&name));
        let runtime = start + found.distance;
        let memory = KeptMemory::of(pid)?;
        let python = Python::at(&memory, runtime, version)?;
        let mut walker = Walker::new(python, &memory);
        for thread in walker.threads()? {
            for frame in walker.stack(thread).frames {
                walker.frame(frame)?;
            }
        }
        let pieces = memory.pieces.borrow();
        return Ok((python.offsets.version, input_of(runtime, python.offsets.version, &pieces)));
    }
    Err("no interpreter is mapped".into())
}
