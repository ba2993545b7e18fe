//! The resolver on small libraries that the test compiles: the answers that each form of debugging
//! information gives. Damaged files never do harm.
//!
//! Needs a C++ compiler (`$CXX`, default `g++`) and binutils' `objcopy`.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nccl_library::elf::{ErrorKind, Image, Machine};
use nccl_library::{
    layouts::Bits,
    parameter::ParamLocation,
    symbols::{
        Declared, FunctionSpec, ParamSource, ProblemKind, Request, Resolution, SymbolSource, render, resolve,
    },
};
use tempfile::TempDir;

use test_support::{damage, tool};

const SOURCE: &str = r#"
typedef unsigned long size_t;
struct Ring { int prev, next; int* userRanks; };
struct Channel { struct Ring ring; int id; };
typedef enum { patternRing = 0, patternTree = 7, patternNone = -1 } pattern_t;
struct Base { long counter; };
struct Comm : Base {
  static int total;
  struct Channel channels[4];
  volatile int matrix[2][3];
  union { size_t whole; struct { unsigned low, high; }; };
  union { struct Channel* coll; int* p2p; } task;
  const char* const name;
  unsigned mode : 3, level : 7;
  pattern_t pattern;
  struct Comm* next;
  int tail[];
};
struct Id { char bytes[128]; };
int Comm::total = 0;
volatile long sink;

__attribute__((noinline)) static int SaveProxy(
    struct Comm* comm, struct Channel* channel, int type, int peer, void* op, int connIndex, bool* justInquire) {
  sink += comm->counter + channel->id + type + peer + (long)op + connIndex;
  asm volatile("" ::: "memory");
  return justInquire ? *justInquire : 0;
}
int ncclProxySaveOp(struct Comm* comm, void* op, bool* justInquire) {
  for (int i = 0; i < 4; i++) sink += SaveProxy(comm, &comm->channels[i], i, comm->matrix[1][i % 3], op, i * 2, justInquire);
  return comm->pattern == patternTree;
}
int ncclProxySaveOpX(struct Comm* comm) { return comm->mode + comm->level; }
extern "C" int ncclCommInitRank(struct Comm** comm, int nranks, struct Id id, int rank) {
  sink += (long)comm + nranks + rank + id.bytes[rank];
  return 0;
}
extern const char version[];
const char version[] = "NCCL version 2.27.5+cuda12.9";
"#;

/// Compiles the library with these options; `None` when that is not possible here.
fn library(directory: &TempDir, options: &[&str]) -> Option<PathBuf> {
    let mut compiler = tool("cxx", "CXX", "g++")?;
    let (source, library) = (directory.path().join("fixture.cc"), directory.path().join("libfixture.so"));
    fs::write(&source, SOURCE).unwrap();
    let fixed = ["-shared", "-fPIC", "-fno-exceptions", "-nostdlib", "-Wl,--build-id=sha1", "-o"];
    let status = compiler.args(options).args(fixed).arg(&library).arg(&source).status().unwrap();
    assert!(status.success(), "compiling the fixture with {options:?}");
    Some(library)
}

/// Describes a function whose parameters are only looked for by their names.
fn required(name: &'static str, params: &'static [Declared], lost: &'static str) -> FunctionSpec {
    FunctionSpec { required: true, ..FunctionSpec::optional(name, params, lost) }
}

fn request() -> Request {
    Request {
        functions: vec![
            required("ncclProxySaveOp", &[("comm", "", 8), ("op", "", 8), ("justInquire", "", 8)], "all"),
            required("SaveProxy", &[("peer", "", 4)], "peers"),
            FunctionSpec::optional("ncclCommInitRank", &[("comm", "", 8)], "births"),
            FunctionSpec::optional("ncclNowhere", &[("x", "", 8)], "nothing much"),
        ],
        structs: ["Comm", "Ring", "Nowhere"].map(Into::into).into(),
        enums: vec!["pattern_t".into()],
        variables: Vec::new(),
    }
}

fn resolved(path: &Path) -> Resolution {
    resolve(&Image::open(path).unwrap(), &request()).unwrap()
}

fn check_layouts(resolution: &Resolution) {
    let layouts = &resolution.layouts;
    let place = |path: &str| layouts.field("Comm", path).map(|field| (field.offset, field.size));
    for (path, expected) in [
        ("counter", (0, 8)),
        ("channels", (8, 96)),
        ("channels.ring.next", (12, 4)),
        ("channels[2].ring.userRanks", (64, 8)),
        ("channels[3].id", (96, 4)),
        ("matrix", (104, 24)),
        ("matrix[5]", (124, 4)),
        ("whole", (128, 8)),
        ("high", (132, 4)),
        ("task", (136, 8)),
        ("task.p2p", (136, 8)),
        ("name", (144, 8)),
        ("pattern", (156, 4)),
        ("next", (160, 8)),
        ("tail", (168, 0)),
    ] {
        assert_eq!(place(path), Some(expected), "{path}");
    }
    for path in ["total", "next.counter", "nothing", "matrix[6]", "task.coll.id"] {
        assert_eq!(place(path), None, "{path}");
    }
    let matrix = layouts.field("Comm", "matrix").unwrap();
    assert_eq!(matrix.array.unwrap().dims, [2, 3]);
    assert_eq!(matrix.type_name, "int[2][3]");
    let bits = |path| layouts.field("Comm", path).map(|field| (field.offset, field.bits));
    for (path, shift, width) in [("mode", 0, 3), ("level", 3, 7)] {
        // Compilers choose the storage unit; the bits of the struct are what counts.
        let (offset, found) = bits(path).unwrap();
        let Bits { shift: at, width: wide } = found.unwrap();
        assert_eq!((offset * 8 + u64::from(at), wide), (152 * 8 + shift, width), "{path}");
    }
    assert_eq!((layouts.struct_size("Comm"), layouts.struct_size("Ring")), (Some(168), Some(16)));
    assert_eq!(layouts.enum_value("pattern_t", "patternTree"), Some(7));
    assert_eq!(layouts.enum_value("pattern_t", "patternNone"), Some(-1));
}

fn stack(sp_offset: i64) -> ParamLocation {
    ParamLocation::EntryStack { sp_offset }
}

fn check_functions(resolution: &Resolution, source: ParamSource) {
    let [save_op] = resolution.functions("ncclProxySaveOp") else { panic!("one copy of ncclProxySaveOp") };
    assert!(save_op.symbol.starts_with("_Z15ncclProxySaveOpP4Comm"), "{}", save_op.symbol);
    assert_eq!(save_op.params_from, source);
    if resolution.machine != Machine::X86_64 {
        return;
    }
    let [save_proxy] = resolution.functions("SaveProxy") else { panic!("one copy of SaveProxy") };
    let place = |name: &str| save_proxy.param(name).unwrap().location.clone();
    assert_eq!(place("comm"), ParamLocation::Register(5));
    assert_eq!(place("peer"), ParamLocation::Register(2));
    assert_eq!(place("connIndex"), ParamLocation::Register(9));
    assert_eq!(place("justInquire"), stack(8));
    let [init] = resolution.functions("ncclCommInitRank") else { panic!("one copy of ncclCommInitRank") };
    assert_eq!(init.param("id").unwrap().location, stack(8));
    assert_eq!(init.param("rank").unwrap().location, ParamLocation::Register(1));
    assert_eq!(init.param("rank").unwrap().size, Some(4));
}

#[test]
fn every_form_of_debugging_information_gives_the_same() {
    for (options, source) in [
        (&["-O2", "-gdwarf-4"][..], ParamSource::DwarfAtEntry),
        (&["-O2", "-gdwarf-5"], ParamSource::DwarfAtEntry),
        (&["-O2", "-gdwarf-2", "-gstrict-dwarf"], ParamSource::DwarfAtEntry),
        (&["-O2", "-gdwarf-5", "-ffunction-sections"], ParamSource::DwarfAtEntry),
        (&["-O2", "-gdwarf-4", "-flto"], ParamSource::DwarfAtEntry),
        (&["-O0", "-gdwarf-4"], ParamSource::CallingConvention),
        (&["-O0", "-gdwarf-5"], ParamSource::CallingConvention),
    ] {
        let directory = TempDir::new().unwrap();
        let Some(library) = library(&directory, options) else { return };
        let resolution = resolved(&library);
        eprintln!("{options:?}\n{}", render(&resolution, &request()));
        assert_eq!(resolution.symbol_source, SymbolSource::OwnDwarf);
        assert_eq!(resolution.build_id.as_ref().unwrap().as_bytes().len(), 20);
        assert_eq!(resolution.nccl_version.unwrap().to_string(), "2.27.5");
        assert_eq!(resolution.cuda_version, Some((12, 9)));
        check_layouts(&resolution);
        check_functions(&resolution, source);
        let missing: Vec<_> = resolution.problems.iter().map(|problem| problem.subject.as_str()).collect();
        assert_eq!(missing, ["ncclNowhere", "Nowhere"]);
        assert_eq!(resolution.missing_required().count(), 0);
    }
}

#[test]
fn without_an_index_the_units_state_their_addresses() {
    for options in
        [&["-O2", "-gdwarf-4"][..], &["-O2", "-gdwarf-5"], &["-O2", "-gdwarf-5", "-ffunction-sections"]]
    {
        let directory = TempDir::new().unwrap();
        let Some(library) = library(&directory, options) else { return };
        let Some(mut objcopy) = tool("binutils", "OBJCOPY", "objcopy") else { return };
        assert!(objcopy.args(["-R", ".debug_aranges"]).arg(&library).status().unwrap().success());
        let resolution = resolved(&library);
        check_layouts(&resolution);
        check_functions(&resolution, ParamSource::DwarfAtEntry);
    }
}

#[test]
fn a_resolution_survives_json() {
    let directory = TempDir::new().unwrap();
    let Some(library) = library(&directory, &["-O2", "-g"]) else { return };
    let resolution = resolved(&library);
    let text = serde_json::to_string(&resolution).unwrap();
    let back: Resolution = serde_json::from_str(&text).unwrap();
    assert_eq!(serde_json::to_string(&back).unwrap(), text);
    assert_eq!(back.functions, resolution.functions);
    assert_eq!(back.layouts, resolution.layouts);
}

#[test]
fn compressed_debugging_information_is_read() {
    for format in ["zlib", "zlib-gnu", "zstd"] {
        let directory = TempDir::new().unwrap();
        let Some(library) = library(&directory, &["-O2", "-g"]) else { return };
        compress(&library, format);
        let resolution = resolved(&library);
        check_layouts(&resolution);
        check_functions(&resolution, ParamSource::DwarfAtEntry);
    }
}

#[test]
fn sections_compressed_by_an_unknown_method_are_said_to_be_unsupported() {
    let directory = TempDir::new().unwrap();
    let Some(library) = library(&directory, &["-O2", "-g"]) else { return };
    compress(&library, "zlib");
    // The method stands first in the section, then a reserved word and the size of what is inside.
    let mut bytes = fs::read(&library).unwrap();
    let image = Image::open(&library).unwrap();
    for section in image.sections().iter().filter(|section| section.name.starts_with(".debug_")) {
        let at = usize::try_from(section.offset.0).unwrap();
        if bytes[at..at + 8] == [1, 0, 0, 0, 0, 0, 0, 0] {
            bytes[at] = 99;
        }
    }
    fs::write(&library, bytes).unwrap();
    let resolution = resolved(&library);
    assert_eq!(resolution.symbol_source, SymbolSource::SymtabOnly);
    assert_eq!(resolution.functions("SaveProxy")[0].params_from, ParamSource::Unknown);
    let problem = resolution.problems.iter().find(|problem| problem.kind == ProblemKind::DebugInfo).unwrap();
    assert!(problem.what.contains("number 99") && problem.what.contains("objcopy"), "{}", problem.what);
}

/// Compresses the debug sections of a library.
fn compress(library: &Path, format: &str) {
    let Some(mut objcopy) = tool("binutils", "OBJCOPY", "objcopy") else { return };
    let option = format!("--compress-debug-sections={format}");
    assert!(objcopy.arg(option).arg(library).status().unwrap().success());
}

#[test]
fn a_stripped_library_has_its_exports_only() {
    let directory = TempDir::new().unwrap();
    let Some(library) = library(&directory, &["-O2", "-s"]) else { return };
    let resolution = resolved(&library);
    assert_eq!(resolution.symbol_source, SymbolSource::ExportsOnly);
    assert_eq!(resolution.functions("ncclProxySaveOp").len(), 1);
    let missing: Vec<_> = resolution.missing_required().map(|problem| problem.subject.as_str()).collect();
    assert_eq!(missing, ["SaveProxy"]);
}

#[test]
fn what_is_no_library_is_refused() {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("file");
    for (bytes, kind) in [
        (&b""[..], ErrorKind::NotElf),
        (&[b'x'; 100], ErrorKind::NotElf),
        (b"\x7fELF\x01\x01\x01", ErrorKind::NotElf),
    ] {
        fs::write(&file, bytes).unwrap();
        assert_eq!(Image::open(&file).unwrap_err().kind(), kind);
    }
    let mut header = [0u8; 64];
    header[..7].copy_from_slice(b"\x7fELF\x01\x01\x01");
    fs::write(&file, header).unwrap();
    assert_eq!(Image::open(&file).unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(Image::open(directory.path()).unwrap_err().kind(), ErrorKind::NotElf);
    assert_eq!(Image::open(&directory.path().join("none")).unwrap_err().kind(), ErrorKind::Io);
    let fifo = directory.path().join("fifo");
    if Command::new("mkfifo").arg(&fifo).status().is_ok_and(|status| status.success()) {
        assert_eq!(Image::open(&fifo).unwrap_err().kind(), ErrorKind::NotElf);
    }
}

#[test]
fn damaged_files_do_no_harm() {
    const LIMIT: Duration = Duration::from_secs(10);
    let mut slowest = Duration::ZERO;
    let compressed = &["-O2", "-gdwarf-5", "-gz=zlib"];
    for options in [&["-O2", "-gdwarf-4"][..], &["-O2", "-gdwarf-5"], &["-O0", "-gdwarf-4"], compressed] {
        let directory = TempDir::new().unwrap();
        let Some(library) = library(&directory, options) else { return };
        let bytes = fs::read(&library).unwrap();
        let ranges: Vec<(usize, usize)> = Image::open(&library)
            .unwrap()
            .sections()
            .iter()
            .filter(|section| section.name.starts_with(".debug_") || section.name.contains("tab"))
            .map(|section| {
                let (offset, size) = (section.offset.0, usize::try_from(section.size).unwrap());
                let offset = usize::try_from(offset).unwrap();
                // A section is smaller while it is compressed.
                (offset, size.min(bytes.len() - offset))
            })
            .filter(|(_, size)| *size > 0)
            .collect();
        slowest = slowest.max(damage::attempts(options, &bytes, &ranges, LIMIT, attempt));
    }
    eprintln!("slowest: {slowest:?}");
}

/// Does everything that a caller does with a library; errors are fine.
fn attempt(file: File) {
    let Ok(image) = Image::from_file(file) else { return };
    match resolve(&image, &request()) {
        Ok(resolution) => {
            let text = render(&resolution, &request());
            let hostile = text.chars().find(|char| char.is_control() && *char != '\n');
            assert_eq!(hostile, None, "control character in the report");
            assert!(text.len() < 1 << 20);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
