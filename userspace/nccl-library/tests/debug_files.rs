//! Separate debug files: which one is taken, and that one of another build never is.
//!
//! Needs a C++ compiler (`$CXX`, default `g++`) and binutils' `objcopy`.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};

use nccl_library::elf::Image;
use nccl_library::symbols::{
    DebugFiles, FunctionSpec, LayoutSource, ProblemKind, Request, Resolution, SymbolSource, resolve_with,
};
use tempfile::TempDir;

use test_support::tool;

const SOURCE: &str = r"
struct Comm { long counter; int rank; };
volatile long sink;
__attribute__((noinline)) static int SaveProxy(Comm* comm, int peer) { return sink += comm->counter + peer; }
int ncclProxySaveOp(Comm* comm) { return SaveProxy(comm, comm->rank) + SaveProxy(comm, REVISION); }
";

/// The files of one build.
struct Build {
    library: PathBuf,
    /// Without symbols and debugging information.
    stripped: PathBuf,
    /// Only symbols and debugging information.
    debug: PathBuf,
}

/// Builds the library in a folder of its own; `None` when that is not possible here.
fn build(directory: &Path, revision: &str, options: &[&str]) -> Option<Build> {
    fs::create_dir_all(directory).unwrap();
    let place = |name: &str| directory.join(name);
    fs::write(place("fixture.cc"), SOURCE).unwrap();
    let built = tool("cxx", "CXX", "g++")?
        .args(["-shared", "-fPIC", "-nostdlib", "-O2", "-g", "-fno-ipa-sra", "-fno-ipa-cp"])
        .arg(format!("-DREVISION={revision}"))
        .args(options)
        .arg("-o")
        .args([place("libfixture.so"), place("fixture.cc")])
        .status();
    assert!(built.unwrap().success(), "compiling the fixture");
    let build =
        Build { library: place("libfixture.so"), stripped: place("stripped"), debug: place("fixture.debug") };
    let copy = |option: &str, from: &Path, to: &Path| {
        let status = tool("binutils", "OBJCOPY", "objcopy")?.arg(option).args([from, to]).status();
        assert!(status.unwrap().success(), "objcopy {option}");
        Some(())
    };
    let link = format!("--add-gnu-debuglink={}", build.debug.display());
    copy("--only-keep-debug", &build.library, &build.debug)?;
    copy("--strip-all", &build.library, &build.stripped)?;
    copy(&link, &build.stripped, &build.stripped)?;
    Some(build)
}

fn resolved(library: &Path, files: &[&Path], folders: &[&Path]) -> Resolution {
    let request = Request {
        functions: vec![FunctionSpec {
            required: true,
            ..FunctionSpec::optional("SaveProxy", &[("comm", "Comm*", 8), ("peer", "int", 4)], "peers")
        }],
        structs: vec!["Comm".into()],
        enums: Vec::new(),
        variables: Vec::new(),
    };
    let own = |paths: &[&Path]| paths.iter().map(|path| path.to_path_buf()).collect();
    let debug_files = DebugFiles::new(own(files), own(folders));
    resolve_with(&Image::open(library).unwrap(), &request, &debug_files).unwrap()
}

/// Checks that the answer is that of the library itself, but from `file`.
fn check(found: &Resolution, build: &Build, file: &Path) {
    let stated = resolved(&build.library, &[], &[]);
    assert_eq!(stated.symbol_source, SymbolSource::OwnDwarf);
    assert_eq!((found.symbol_source, found.layouts_from), (SymbolSource::DebugFile, LayoutSource::Dwarf));
    assert_eq!(found.debug_file.as_deref(), file.to_str());
    assert_eq!(found.functions, stated.functions);
    assert_eq!(found.layouts, stated.layouts);
    assert!(found.problems.is_empty(), "{:?}", found.problems);
}

#[test]
fn by_build_id() {
    let directory = TempDir::new().unwrap();
    let Some(build) = build(directory.path(), "1", &["-Wl,--build-id=sha1"]) else { return };
    let stripped = resolved(&build.stripped, &[], &[]);
    assert_eq!(stripped.symbol_source, SymbolSource::ExportsOnly);
    for file in [&build.debug, &build.library] {
        check(&resolved(&build.stripped, &[file], &[]), &build, file);
    }
    // The tree that distributions install.
    let digits = stripped.build_id.unwrap().to_string();
    let tree = directory.path().join("tree");
    let folder = tree.join(".build-id").join(&digits[..2]);
    fs::create_dir_all(&folder).unwrap();
    let file = folder.join(format!("{}.debug", &digits[2..]));
    fs::copy(&build.debug, &file).unwrap();
    check(&resolved(&build.stripped, &[], &[&tree]), &build, &file);
    // A folder of unstripped libraries, under any name.
    let wheels = directory.path().join("wheels");
    fs::create_dir_all(wheels.join("nvidia/nccl/lib")).unwrap();
    let file = wheels.join("nvidia/nccl/lib/libnccl.so.2");
    fs::copy(&build.library, &file).unwrap();
    fs::copy(&build.stripped, wheels.join("a-stripped-one")).unwrap();
    fs::write(wheels.join("README"), "no library").unwrap();
    std::os::unix::fs::symlink(&wheels, wheels.join("circle")).unwrap();
    check(&resolved(&build.stripped, &[], &[&wheels]), &build, &file);
}

#[test]
fn by_debug_link() {
    let directory = TempDir::new().unwrap();
    let Some(build) = build(directory.path(), "1", &["-Wl,--build-id=none"]) else { return };
    let folder = directory.path().join("debug");
    for place in [folder.join("fixture.debug"), folder.join(".debug/fixture.debug")] {
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        fs::copy(&build.debug, &place).unwrap();
        check(&resolved(&build.stripped, &[], &[&folder]), &build, &place);
        // One byte of it changed: no longer the file that the library means.
        let mut bytes = fs::read(&place).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&place, bytes).unwrap();
        assert_eq!(resolved(&build.stripped, &[], &[&folder]).symbol_source, SymbolSource::ExportsOnly);
        fs::remove_file(&place).unwrap();
    }
}

#[test]
fn of_another_build_is_refused() {
    let directory = TempDir::new().unwrap();
    for options in [&["-Wl,--build-id=sha1"][..], &["-Wl,--build-id=none"]] {
        let Some(build_one) = build(&directory.path().join("1"), "1", options) else { return };
        let Some(build_two) = build(&directory.path().join("2"), "2", options) else { return };
        let found = resolved(&build_one.stripped, &[&build_two.debug], &[&directory.path().join("2")]);
        assert_eq!(found.symbol_source, SymbolSource::ExportsOnly);
        let problem = found.problems.iter().find(|problem| problem.kind == ProblemKind::DebugInfo).unwrap();
        let said = if options[0].ends_with("sha1") { "has build-id" } else { "has checksum" };
        assert!(problem.what.contains(said), "{}", problem.what);
        // The right one after it is still taken.
        let files: [&Path; 2] = [&build_two.debug, &build_one.debug];
        assert_eq!(resolved(&build_one.stripped, &files, &[]).symbol_source, SymbolSource::DebugFile);
        let found = resolved(&build_one.stripped, &[&build_one.stripped, Path::new("/nonexistent")], &[]);
        let said: Vec<_> = found.problems.iter().map(|problem| problem.what.as_str()).collect();
        assert!(said[0].contains("no debugging information") || said[0].contains("has checksum"), "{said:?}");
        assert!(said[1].contains("cannot be read"), "{said:?}");
    }
}
