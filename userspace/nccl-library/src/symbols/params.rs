//! Finds the parameters of one copy of a function, from the best source there is.

use super::copies::Copy;
use super::{Param, ParamSource};
use super::{convention, entry_code, prototypes};
use crate::dwarf::{DeclaredParam, Found, is_in_own_frame};
use crate::elf::{Budget, Image};
use crate::{nccl::NcclVersion, parameter::ParamLocation};

/// Bytes of a function's code before which the first test of a parameter must come.
const ENTRY_CODE: u64 = 256;

pub(super) struct Knowledge<'a> {
    pub(super) image: &'a Image,
    pub(super) version: Option<NcclVersion>,
    pub(super) found: &'a Found,
}

impl Knowledge<'_> {
    /// Returns the parameters of a copy. `copies` is how many there are of the function: several that no
    /// symbol tells apart may take different parameters.
    pub(super) fn params(
        &self,
        name: &str,
        copy: &Copy,
        copies: usize,
        budget: &mut Budget,
    ) -> (Vec<Param>, ParamSource) {
        if let Some(known) = self.of_debugging_information(copy) {
            return known;
        }
        if name == "SaveProxy" {
            let params = self.save_proxy(copy, copies, budget);
            return params
                .map_or((Vec::new(), ParamSource::Unknown), |params| (params, ParamSource::EntryCode));
        }
        let keeps_convention = match copy.is_clone {
            Some(is_clone) => !is_clone,
            None => copies == 1,
        };
        let declared = prototypes::of(name, copy.is_static).filter(|_| keeps_convention);
        match declared {
            Some(declared) => (self.by_convention(copy, declared), ParamSource::Prototype),
            None => (Vec::new(), ParamSource::Unknown),
        }
    }

    fn of_debugging_information(&self, copy: &Copy) -> Option<(Vec<Param>, ParamSource)> {
        let is_clone = copy.is_clone != Some(false);
        let declared = match self.found.functions.get(&copy.found.address.0) {
            Some(params) if is_clone || !is_unoptimised(params) => {
                let mut all: Vec<Param> = params
                    .iter()
                    .map(|(declared, location)| Param::of(declared.clone(), location.clone()))
                    .collect();
                // Clang counts places in the frame from the stack pointer as it is behind the prologue. What
                // the caller of an exported function put onto the stack is where the convention says.
                if !is_clone && !copy.is_static {
                    let declared = params.iter().map(|(declared, _)| declared.clone()).collect();
                    for (param, placed) in all.iter_mut().zip(self.by_convention(copy, declared)) {
                        let is_on_stack = matches!(placed.location, ParamLocation::EntryStack { .. });
                        if is_on_stack && is_in_own_frame(&param.location) {
                            param.location = placed.location;
                        }
                    }
                }
                return Some((all, ParamSource::DwarfAtEntry));
            }
            Some(params) => params.iter().map(|(declared, _)| declared.clone()).collect(),
            None if is_clone => return None,
            None => self.found.declared.get(&copy.base)?.clone(),
        };
        Some((self.by_convention(copy, declared), ParamSource::CallingConvention))
    }

    fn by_convention(&self, copy: &Copy, declared: Vec<DeclaredParam>) -> Vec<Param> {
        convention::placed(self.image.machine(), declared, !copy.symbol.starts_with("_Z"))
    }

    fn save_proxy(&self, copy: &Copy, copies: usize, budget: &mut Budget) -> Option<Vec<Param>> {
        if copies != 1 {
            return None;
        }
        let machine = self.image.machine();
        let size = if copy.found.size == 0 { ENTRY_CODE } else { copy.found.size.min(ENTRY_CODE) };
        let code = self.image.loaded_bytes(copy.found.address, size, budget).ok()?;
        let tested = entry_code::first_sign_test(machine, &code)?;
        prototypes::save_proxy(machine, self.version?, tested, copy.is_clone)
    }
}

/// Tells whether the function is not optimised. Such code stores its register parameters to its own frame
/// first and states only that place. The calling convention is used for it: nothing has looked at who calls
/// it.
fn is_unoptimised(params: &[(DeclaredParam, ParamLocation)]) -> bool {
    let mut locations = params.iter().map(|(_, location)| location);
    let on_stack = |location: &_| matches!(location, ParamLocation::EntryStack { .. });
    locations.clone().any(is_in_own_frame)
        && locations.all(|location| is_in_own_frame(location) || on_stack(location))
}
