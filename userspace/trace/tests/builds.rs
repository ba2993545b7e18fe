//! Libraries that are no official builds: compiled here by another compiler, without debugging
//! information, stripped, with a function inlined away, of changed sources. Each gets the right source of
//! symbols, or an honest "not known".
//!
//! Needs a C++ compiler (`$CXX`, default `g++`) and an assembler (`$CC`, default `cc`) for x86-64.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use flow::session::{Level, ProbeStrategy};
use nccl_library::elf::Image;
use nccl_library::{
    parameter::ParamLocation,
    symbols::{FoundBy, LayoutSource, ParamSource, Resolution, SymbolSource, nccl_request, render, resolve},
};
use tempfile::TempDir;
use trace::kernel::probe::{self};

use test_support::{cpu_time, damage, need, tool};

/// The shape of NCCL's own functions. `COMM_SIZE` is that of 2.27.5 unless the sources are said to be
/// changed.
const SOURCE: &str = r#"
#ifndef COMM_SIZE
#define COMM_SIZE 1080320
#endif
#ifndef SAVE_PROXY
#define SAVE_PROXY __attribute__((noinline)) static
#endif
struct ncclChannel { void** peers; int id; };
struct ncclComm { unsigned long startMagic; struct ncclChannel channels[32]; char rest[COMM_SIZE - 528]; unsigned long endMagic; };
struct ncclProxyOp { int nsteps, channelId, pattern, root; };
struct ncclInfo { int coll; const char* opName; struct ncclComm* comm; };
extern "C" void* allocate(unsigned long);
extern "C" void report(const char* function, int line);
extern "C" __attribute__((cold)) void fail(const char* function, int line);
volatile long sink;

SAVE_PROXY int SaveProxy(ncclComm* comm, ncclChannel* channel, int type, int peer, ncclProxyOp* op, int connIndex, bool* justInquire) {
  if (peer < 0) return 0;
  sink += (long)comm + channel->id + type + (long)channel->peers[peer] + connIndex;
  if (op->nsteps < 0) { report(__func__, 1); return 1; }
  if (justInquire) *justInquire = true;
  return 0;
}
__attribute__((noinline)) int ncclProxySaveOp(ncclComm* comm, ncclProxyOp* op, bool* justInquire) {
  ncclChannel* channel = &comm->channels[op->channelId];
  switch (op->pattern) {
  case 0:
    if (SaveProxy(comm, channel, 0, op->root, op, 0, justInquire)) { report(__func__, 2); return 1; }
    return SaveProxy(comm, channel, 1, op->root + 1, op, 1, justInquire);
  case 1: return SaveProxy(comm, channel + 1, 1, op->nsteps, op + 1, op->root, nullptr);
  }
  report(__func__, 3);
  return 3;
}
#ifdef TWO
namespace other { __attribute__((noinline)) static int SaveProxy(int value) { report(__func__, value); return value; } }
#endif
__attribute__((noinline)) int ncclEnqueueCheck(ncclInfo* info) {
  if (info->comm->startMagic != info->comm->endMagic) { fail(__func__, 4); return 4; }
  sink += info->coll;
  return 0;
}
#define EXPORTED extern "C" __attribute__((visibility("default")))
EXPORTED int ncclAllReduce(ncclComm* comm, ncclProxyOp* op) {
  ncclInfo info = { 4, "AllReduce", comm };
#ifdef TWO
  sink += other::SaveProxy(op->root);
#endif
  return ncclEnqueueCheck(&info) + ncclProxySaveOp(comm, op, nullptr);
}
EXPORTED int ncclBroadcast(ncclComm* comm, ncclProxyOp* op, bool* needed) {
  ncclInfo info = { 0, "Broadcast", comm };
  return ncclEnqueueCheck(&info) + ncclProxySaveOp(comm, op, needed);
}
EXPORTED ncclComm* ncclCommInitRank() { return (ncclComm*)allocate(sizeof(ncclComm)); }
extern const char version[];
const char version[] = "NCCL version 2.27.5+cuda12.9";
"#;

/// A compiler for x86-64; if there is none, skips.
fn compiler(thing: &str, variable: &str, usual: &str) -> Option<Command> {
    let compiler = tool(thing, variable, usual)?;
    let target = Command::new(compiler.get_program()).arg("-dumpmachine").output().unwrap();
    let is_x86 = String::from_utf8_lossy(&target.stdout).starts_with("x86_64");
    need(thing, is_x86, &format!("{} compiles for another processor", compiler.get_program().display()))
        .then_some(compiler)
}

/// Compiles the library; `None` when that is not possible here.
fn library(directory: &TempDir, options: &[&str]) -> Option<PathBuf> {
    let mut compiler = compiler("cxx", "CXX", "g++")?;
    let (source, library) = (directory.path().join("fixture.cc"), directory.path().join("libfixture.so"));
    fs::write(&source, SOURCE).unwrap();
    let fixed =
        ["-shared", "-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-nostdlib", "-Wl,--build-id=sha1"];
    let status = compiler.args(fixed).args(options).arg("-o").arg(&library).arg(&source).status().unwrap();
    assert!(status.success(), "compiling the fixture with {options:?}");
    Some(library)
}

fn resolved(library: &Path) -> Resolution {
    let resolution = resolve(&Image::open(library).unwrap(), &nccl_request()).unwrap();
    if env::var_os("NCCLFLOW_SHOW").is_some() {
        eprintln!("{}", render(&resolution, &nccl_request()));
    }
    resolution
}

/// The library with everything, and built again with more options.
fn both(options: &[&str], more: &[&str]) -> Option<(Resolution, Resolution)> {
    let directory = TempDir::new().unwrap();
    let with_all = resolved(&library(&directory, &[options, &["-g"]].concat())?);
    assert_eq!(with_all.symbol_source, SymbolSource::OwnDwarf);
    let changed = resolved(&library(&directory, &[options, more].concat())?);
    Some((with_all, changed))
}

fn missing(resolution: &Resolution) -> Vec<&str> {
    resolution.missing_required().map(|problem| problem.subject.as_str()).collect()
}

/// The functions are where the symbols of the library say, and so are the parameters.
fn compare(library: &Resolution, copy: &Resolution, source: ParamSource) {
    for name in ["ncclProxySaveOp", "SaveProxy", "ncclEnqueueCheck"] {
        let ([stated], [found]) = (library.functions(name), copy.functions(name)) else {
            panic!("one copy of {name}: {:?}", copy.problems)
        };
        assert_eq!((found.vaddr, found.file_offset), (stated.vaddr, stated.file_offset), "{name}");
        let expected = if name == "SaveProxy" { source } else { ParamSource::Prototype };
        assert_eq!(found.params_from, expected, "{name}");
        if expected == ParamSource::Unknown {
            continue;
        }
        for param in &stated.params {
            assert_eq!(
                found.param(&param.name).map(|found| &found.location),
                Some(&param.location),
                "{name}"
            );
        }
    }
}

#[test]
fn another_compiler_keeps_the_declared_order() {
    for optimisation in ["-O1", "-O2", "-O3", "-Os"] {
        let options = [optimisation, "-fno-ipa-sra", "-fno-ipa-cp"];
        let Some((stated, found)) = both(&options, &["-s"]) else { return };
        assert_eq!(
            (found.symbol_source, found.layouts_from),
            (SymbolSource::Stripped, LayoutSource::ShippedForVersion)
        );
        let [save_proxy] = found.functions("SaveProxy") else {
            panic!("{optimisation}: {:?}", found.problems)
        };
        assert_eq!(save_proxy.found_by, FoundBy::OwnName);
        compare(&stated, &found, ParamSource::EntryCode);
        assert_eq!(save_proxy.param("peer").unwrap().location, ParamLocation::Register(2));
        assert_eq!(
            save_proxy.param("justInquire").unwrap().location,
            ParamLocation::EntryStack { sp_offset: 8 }
        );
        assert_eq!(found.layouts.struct_size("ncclComm"), Some(1_080_320));
    }
}

#[test]
fn symbols_without_debugging_information() {
    let Some((stated, found)) = both(&["-O2", "-fno-ipa-sra", "-fno-ipa-cp"], &[]) else { return };
    assert_eq!(
        (found.symbol_source, found.layouts_from),
        (SymbolSource::SymtabWithShippedLayout, LayoutSource::ShippedForVersion)
    );
    compare(&stated, &found, ParamSource::EntryCode);
}

/// `--discard-all` leaves exported symbols in `.symtab`; NCCL's own functions are hidden.
#[test]
fn symbols_of_exported_functions_only() {
    let options = ["-O2", "-fno-ipa-sra", "-fno-ipa-cp"];
    let Some((stated, found)) = both(&options, &["-Wl,--discard-all"]) else { return };
    assert_eq!(
        (found.symbol_source, found.layouts_from),
        (SymbolSource::SymtabWithShippedLayout, LayoutSource::ShippedForVersion)
    );
    assert_eq!(found.functions("SaveProxy")[0].found_by, FoundBy::OwnName);
    compare(&stated, &found, ParamSource::EntryCode);
}

/// Debugging information of something else in the library is no reason not to look further.
#[test]
fn debugging_information_of_another_object_file() {
    let directory = TempDir::new().unwrap();
    let other = directory.path().join("other.cc");
    fs::write(&other, "int other(int value) { return value + 1; }").unwrap();
    let options = ["-O2", "-fno-ipa-sra", "-fno-ipa-cp", "-c", "-g", "-nostdlib"];
    let Some(object) = library(&directory, &["-O2"]) else { return };
    let compiler = env::var_os("CXX").unwrap_or_else(|| "g++".into());
    let built =
        Command::new(compiler).args(options).arg(&other).arg("-o").arg(object.with_extension("o")).status();
    assert!(built.unwrap().success());
    let object = object.with_extension("o");
    let Some(library) =
        library(&directory, &["-O2", "-fno-ipa-sra", "-fno-ipa-cp", object.to_str().unwrap()])
    else {
        return;
    };
    let found = resolved(&library);
    assert!(Image::open(&library).unwrap().section(".debug_info").is_some());
    assert_eq!((found.symbol_source, missing(&found)), (SymbolSource::SymtabWithShippedLayout, Vec::new()));
}

#[test]
fn the_layouts_of_changed_sources_are_not_known() {
    let changed = ["-O2", "-fno-ipa-sra", "-fno-ipa-cp", "-DCOMM_SIZE=1080328"];
    for (more, symbol_source) in [(&["-s"][..], SymbolSource::StrippedOnly), (&[], SymbolSource::SymtabOnly)]
    {
        let Some((stated, found)) = both(&changed, more) else { return };
        assert_eq!((found.symbol_source, found.layouts_from), (symbol_source, LayoutSource::Unknown));
        assert_eq!(found.layouts.structs.len(), 0);
        assert!(found.problems.iter().any(|problem| problem.what.contains("a build of other sources")));
        // What cannot be probed says the same, and speaks of no debugging information that it never had.
        let set = probe::compile(&found, Level::Flow, Some(ProbeStrategy::PerCall));
        assert!(set.probes.is_empty());
        for missing in &set.missing {
            assert!(missing.why.contains("a build of other sources"), "{missing:?}");
        }
        compare(&stated, &found, ParamSource::EntryCode);
    }
}

#[test]
fn unoptimised_code_shows_no_registers() {
    let Some((stated, found)) = both(&["-O0"], &["-s"]) else { return };
    compare(&stated, &found, ParamSource::Unknown);
    assert!(found.problems.iter().any(|problem| problem.subject.starts_with("SaveProxy(")));
}

#[test]
fn a_function_that_was_inlined_is_not_found_in_its_caller() {
    let options = ["-O2", "-DSAVE_PROXY=__attribute__((always_inline)) inline static"];
    let Some((stated, found)) = both(&options, &["-s"]) else { return };
    assert!(stated.functions("SaveProxy").is_empty());
    assert_eq!(missing(&found), ["SaveProxy"]);
    assert_eq!(found.functions("ncclProxySaveOp")[0].vaddr, stated.functions("ncclProxySaveOp")[0].vaddr);
}

#[test]
fn of_two_functions_with_one_name_neither_is_taken() {
    let Some((_, found)) = both(&["-O2", "-DTWO"], &["-s"]) else { return };
    assert_eq!(missing(&found), ["SaveProxy"]);
    let why = found.missing_required().next().unwrap().what.clone();
    assert!(why.contains("several functions refer to its name"), "{why}");
    let set = probe::compile(&found, Level::Flow, Some(ProbeStrategy::PerCall));
    let missing = set.missing.iter().find(|missing| missing.function == "SaveProxy").unwrap();
    assert_eq!(missing.why, why);
}

#[test]
fn without_unwind_tables_only_the_exports_are_left() {
    let options = ["-O2", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables"];
    let Some((_, found)) = both(&options, &["-s"]) else { return };
    assert_eq!(found.symbol_source, SymbolSource::ExportsOnly);
    assert_eq!(missing(&found), ["ncclProxySaveOp", "SaveProxy"]);
}

/// Everything a caller does with a library; errors are fine.
fn attempt(file: File) {
    let Ok(image) = Image::from_file(file) else { return };
    if let Ok(resolution) = resolve(&image, &nccl_request()) {
        let text = render(&resolution, &nccl_request());
        assert!(
            !text.chars().any(|char| char.is_control() && char != '\n'),
            "control character in the report"
        );
    }
}

#[test]
fn damaged_stripped_files_do_no_harm() {
    const LIMIT: Duration = Duration::from_secs(1);
    let directory = TempDir::new().unwrap();
    let mut slowest = Duration::ZERO;
    for options in [&["-O2", "-s", "-fno-ipa-sra"][..], &["-O2", "-fno-ipa-sra"]] {
        let Some(library) = library(&directory, options) else { return };
        let bytes = fs::read(&library).unwrap();
        let searched = [".eh_frame", ".rodata", ".text", ".dynsym", ".dynstr", ".symtab"];
        let image = Image::open(&library).unwrap();
        let ranges: Vec<(usize, usize)> = image
            .sections()
            .iter()
            .filter(|section| searched.contains(&section.name.as_str()) && section.size > 0)
            .map(|section| {
                (usize::try_from(section.offset.0).unwrap(), usize::try_from(section.size).unwrap())
            })
            // The section headers stand last.
            .chain([(bytes.len() - 1024, 1024)])
            .collect();
        slowest = slowest.max(damage::attempts(options, &bytes, &ranges, LIMIT, attempt));
    }
    eprintln!("slowest: {slowest:?}");
}

/// A framework with NCCL inside may be larger than what is searched.
#[test]
fn what_is_too_large_to_search_still_has_its_exports() {
    let directory = TempDir::new().unwrap();
    let source = directory.path().join("large.s");
    let text = ".text\n.globl ncclCommDestroy\n.type ncclCommDestroy,@function\nncclCommDestroy: ret\n.size ncclCommDestroy,1\n\
        .section .rodata\n.asciz \"NCCL version 2.27.5+cuda12.9\"\n.fill 70000000, 1, 0\n";
    fs::write(&source, text).unwrap();
    let library = directory.path().join("large.so");
    let Some(mut assembler) = compiler("cc", "CC", "cc") else { return };
    let built = assembler.args(["-shared", "-nostdlib", "-s", "-o"]).args([&library, &source]).status();
    assert!(built.unwrap().success(), "assembling the fixture");
    let resolution = resolved(&library);
    assert_eq!(resolution.symbol_source, SymbolSource::ExportsOnly);
    assert_eq!(resolution.functions("ncclCommDestroy").len(), 1);
    assert!(resolution.problems.iter().any(|problem| problem.subject == "functions without symbols"));
}

/// As many functions as fit, all of which claim to be the same, and jump into each other.
#[test]
fn hostile_code_ends_soon() {
    let directory = TempDir::new().unwrap();
    let source = directory.path().join("hostile.s");
    let function = ".cfi_startproc\n.cfi_def_cfa_offset 16\nlea name(%rip),%rax\njmp .-40\ncall .-100\nlea .-64(%rip),%rsi\nret\n.cfi_endproc\n";
    let names =
        "name: .asciz \"SaveProxy\"\n.asciz \"ncclProxySaveOp\"\n.asciz \"NCCL version 2.27.5+cuda12.9\"\n";
    let text = format!(
        ".text\n.rept 200000\n{function}.endr\n.fill 8000000, 1, 0x0f\n.fill 8000000, 1, 0xe9\n.section .rodata\n.byte 0\n{names}"
    );
    fs::write(&source, text).unwrap();
    let library = directory.path().join("hostile.so");
    let Some(mut assembler) = compiler("cc", "CC", "cc") else { return };
    let built = assembler.args(["-shared", "-nostdlib", "-s", "-o"]).args([&library, &source]).status();
    assert!(built.unwrap().success(), "assembling the fixture");
    let start = cpu_time();
    let resolution = resolved(&library);
    let taken = cpu_time().saturating_sub(start);
    eprintln!("{taken:?}");
    assert_eq!(resolution.symbol_source, SymbolSource::ExportsOnly);
    let limit = if cfg!(debug_assertions) { 20 } else { 1 };
    assert!(taken < Duration::from_secs(limit), "{taken:?}");
}
