//! Identification of a library without debugging information as one that layouts are shipped for.
//!
//! A build-id proves it. Without a known one, the version string, the major version of CUDA and the processor
//! must name one set of layouts, and the code must not contradict it. NCCL allocates an `ncclComm` and clears
//! it, so its size stands in the code; from 2.21 on so does the place of its last word, `endMagic`, which
//! every call of the API checks. A build from changed sources has other numbers there.

use std::collections::BTreeSet;

use memchr::memmem;

use super::{
    LayoutSource, Resolution,
    shipped::{Table, TableError},
};
use crate::elf::{Budget, Error, Image, Machine};
use crate::fields::comm;
use crate::layouts::Layouts;

/// Most code that is searched; the official libraries have at most 3 MB.
const MAX_CODE: u64 = 256 << 20;

/// Returns the layouts that are shipped for a library, and states in its resolution where they are from, and
/// the variables if these are known too.
///
/// # Errors
/// Why nothing can be used.
pub(super) fn shipped(
    image: &Image,
    resolution: &mut Resolution,
    budget: &mut Budget,
) -> Result<Layouts, String> {
    let unusable = |error: TableError| error.to_string();
    let table = Table::shipped().map_err(unusable)?;
    if let Some(library) = image.build_id().and_then(|build_id| table.with_build_id(build_id))
        && library.machine == image.machine()
        && resolution.nccl_version.is_none_or(|nccl| nccl == library.nccl)
    {
        let layouts = table.layouts(library).map_err(unusable)?;
        resolution.variables = library.variables.clone();
        resolution.layouts_from = LayoutSource::ShippedForBuildId;
        return Ok(layouts);
    }
    let versions = resolution.nccl_version.zip(resolution.cuda_version);
    let (nccl, cuda) = versions.ok_or("the library does not state its version")?;
    let library = table.with_version(nccl, cuda, image.machine()).ok_or_else(|| {
        let (major, minor) = cuda;
        format!("no layouts are shipped for NCCL {nccl} for CUDA {major}.{minor} and this processor")
    })?;
    let layouts = table.layouts(library).map_err(unusable)?;
    if !code_agrees(image, &layouts, budget).map_err(|error| error.to_string())? {
        return Err(format!(
            "its code does not agree with the layouts of NCCL {nccl}: a build of other sources"
        ));
    }
    resolution.layouts_from = LayoutSource::ShippedForVersion;
    Ok(layouts)
}

/// Tells whether the numbers that the layout of `ncclComm` implies stand in the code. False for a processor
/// whose code is not read.
fn code_agrees(image: &Image, layouts: &Layouts, budget: &mut Budget) -> Result<bool, Error> {
    let Some(text) = image.section(".text").filter(|_| image.machine() == Machine::X86_64) else {
        return Ok(false);
    };
    let size = comm::STRUCT.size(layouts).ok();
    let end_magic = comm::END_MAGIC.find(layouts).map(|field| field.offset);
    let numbers: BTreeSet<u32> =
        [size, end_magic].into_iter().flatten().filter_map(|number| u32::try_from(number).ok()).collect();
    if numbers.is_empty() {
        return Ok(false);
    }
    let code = image.section_data(text, MAX_CODE, budget)?;
    Ok(numbers.iter().all(|number| memmem::find(&code, &number.to_le_bytes()).is_some()))
}
