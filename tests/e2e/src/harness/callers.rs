//! Small libraries that export calls of NCCL, and processes that call them: for tests of many libraries, many
//! processes and many calls, where nothing need be communicated. `--level api` records them by their exported names.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use super::{node::Killed, programs::compiled};

const CALLER: &str = r#"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
typedef int (*call)(const void *, void *, size_t, int, int, void *, void *);
int main(int count, char **words) {
    if (count < 5) return 1;
    void *library = dlopen(words[1], RTLD_NOW);
    if (!library) { fprintf(stderr, "%s\n", dlerror()); return 2; }
    call reduce = (call)dlsym(library, "ncclAllReduce");
    if (!reduce || setgid(atoi(words[2])) || setuid(atoi(words[2]))) return 3;
    long calls = atol(words[3]), pause_us = atol(words[4]);
    puts("ready"); fflush(stdout);
    char byte;
    if (read(0, &byte, 1) != 1) return 0;
    for (long i = 0; i < calls; i++) {
        reduce(words, words, 1, 7, 0, library, 0);
        if (pause_us) usleep(pause_us);
    }
    puts("done"); fflush(stdout);
    while (read(0, &byte, 1) > 0) {}
    return 0;
}
"#;

/// What a library's `ncclAllReduce` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduce {
    /// It returns, after so many instructions that do nothing.
    Returns(u32),
    /// It begins with a breakpoint: the kernel refuses a probe there.
    Breakpoint,
}

/// Makes a library. `None`: there is no C compiler.
pub fn library(path: &Path, reduce: Reduce) -> Result<Option<PathBuf>> {
    let body = match reduce {
        Reduce::Returns(nothing) => "\"nop\\n\"\n".repeat(nothing as usize) + "\"xor %eax,%eax\\nret\\n\"",
        Reduce::Breakpoint => "\"int3\\nxor %eax,%eax\\nret\\n\"".to_owned(),
    };
    let source = format!(
        "__asm__(\".text\\n.globl ncclCommInitRank\\n.type ncclCommInitRank,@function\\nncclCommInitRank:\\nret\\n\"\n\
         \".size ncclCommInitRank,.-ncclCommInitRank\\n\"\n\
         \".globl ncclAllReduce\\n.type ncclAllReduce,@function\\nncclAllReduce:\\n\"\n{body}\n\
         \".size ncclAllReduce,.-ncclAllReduce\\n\");\n\
         const char *ncclVersionText(void) {{ return \"NCCL version 2.27.5+cuda12.4\"; }}\n"
    );
    compiled(&source, path, &["-shared", "-fPIC", "-nostdlib"])
}

/// Makes the program that calls. `None`: there is no C compiler.
pub fn program(folder: &Path) -> Result<Option<PathBuf>> {
    compiled(CALLER, &folder.join("caller"), &["-ldl"])
}

/// A process that has such a library loaded, and calls it when it is told to.
#[derive(Debug)]
pub struct Caller(Killed);

impl Caller {
    /// It runs as this user, and makes so many calls with a pause after each.
    pub fn start(program: &Path, library: &Path, uid: u32, calls: u64, pause_us: u64) -> Result<Self> {
        let mut command = Command::new(program);
        command.arg(library).args([uid.to_string(), calls.to_string(), pause_us.to_string()]);
        let mut caller = Self(Killed::start(&mut command)?);
        caller.hear("ready")?;
        Ok(caller)
    }

    pub fn pid(&self) -> u32 {
        self.0.pid()
    }

    /// Has it begin.
    pub fn go(&mut self) -> Result<()> {
        let input = self.0.0.stdin.as_mut().context("it has no input")?;
        input.write_all(b"g")?;
        Ok(())
    }

    /// Waits until it has made its calls.
    pub fn wait(&mut self) -> Result<()> {
        self.hear("done")
    }

    fn hear(&mut self, word: &str) -> Result<()> {
        let heard = self.0.line()?;
        if heard != word {
            bail!("it said `{heard}`");
        }
        Ok(())
    }
}
