//! A stand-in for torch's libraries, and a process that has it loaded: `tests/torch-double`.

#![expect(clippy::expect_used, reason = "a test fails by panicking")]

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use crate::tool::tool;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../torch-double");

/// Makes `folder/torch/lib/NAME` with the structs of torch 2.`minor`, and `folder/torch/version.py` beside it. Skips for
/// want of a compiler.
///
/// # Panics
/// If it cannot be built; and as [`crate::skip`] does.
#[must_use]
pub fn torch_double(folder: &Path, minor: u32, name: &str) -> Option<PathBuf> {
    let mut compiler = tool("g++", "CXX", "g++")?;
    let lib = folder.join("torch/lib");
    let library = lib.join(name);
    let version = format!("__version__ = '2.{minor}.0+cu128'\n");
    fs::create_dir_all(&lib)
        .and_then(|()| fs::write(folder.join("torch/version.py"), version))
        .expect("a folder for tests");
    // As torch's wheels.
    let cxx11 = u8::from(minor >= 7);
    compiler.args(["-std=c++17", "-w", "-fPIC", "-shared", "-pthread", "-fvisibility-inlines-hidden"]);
    compiler.args([format!("-DMINOR={minor}"), format!("-D_GLIBCXX_USE_CXX11_ABI={cxx11}")]);
    if name == "libtorch_cpu.so" {
        compiler.arg("-DCPU");
    }
    compiler.arg("-o").arg(&library).arg(Path::new(FOLDER).join("torch.cpp"));
    assert!(compiler.status().is_ok_and(|status| status.success()), "{compiler:?}");
    Some(library)
}

/// A Python process that has the stand-in loaded. It ends when this is dropped.
#[derive(Debug)]
pub struct TorchJob {
    child: Child,
    input: ChildStdin,
    lines: BufReader<ChildStdout>,
}

impl TorchJob {
    /// `libraries`: the stand-in last. `environment`: variables of the process.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn start(python: &Path, libraries: &[&Path], environment: &[(&str, &str)]) -> Self {
        let mut command = Command::new(python);
        command.arg("-I").arg(Path::new(FOLDER).join("job.py")).args(libraries);
        command.envs(environment.iter().copied()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("Python starts");
        let input = child.stdin.take().expect("its input");
        let lines = BufReader::new(child.stdout.take().expect("its output"));
        let mut job = Self { child, input, lines };
        job.ask("[\"begin\"]");
        job
    }

    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Has a line of JSON done; the answer, which is one, too.
    ///
    /// # Panics
    /// If the process has ended.
    pub fn ask(&mut self, line: &str) -> String {
        writeln!(self.input, "{line}").expect("the job listens");
        let mut answer = String::new();
        let read = self.lines.read_line(&mut answer).expect("the job answers");
        assert!(read > 0, "the job has ended");
        answer
    }
}

impl Drop for TorchJob {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
