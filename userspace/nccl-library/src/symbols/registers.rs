//! Names of the DWARF register numbers that parameters arrive in.

use super::probe_point::x86_register;
use crate::elf::Machine;

/// Returns the name of a DWARF register number. `size` is that of the value in bytes: a value of 4 bytes or
/// less is in the low half, which has a name of its own. A number without a name is shown as such.
pub fn register_name(machine: Machine, number: u16, size: Option<u64>) -> String {
    let narrow = size.is_some_and(|size| size <= 4);
    match machine {
        Machine::X86_64 if number < 16 => {
            let register = x86_register(number).unwrap_or_default();
            let register = if narrow { register.full_register32() } else { register };
            format!("{register:?}").to_lowercase()
        }
        // 16 is the return address column.
        Machine::X86_64 if (17..=32).contains(&number) => format!("xmm{}", number - 17),
        Machine::Aarch64 if number < 31 => format!("{}{number}", if narrow { 'w' } else { 'x' }),
        Machine::Aarch64 if number == 31 => "sp".to_owned(),
        Machine::Aarch64 if (64..=95).contains(&number) => format!("v{}", number - 64),
        _ => format!("dwarf-register-{number}"),
    }
}

pub(super) fn stack_pointer(machine: Machine) -> &'static str {
    if machine == Machine::X86_64 { "rsp" } else { "sp" }
}

#[cfg(test)]
mod tests {
    use super::register_name;
    use crate::elf::Machine;

    #[test]
    fn names() {
        let name = |number, size| register_name(Machine::X86_64, number, size);
        let arguments: Vec<String> = [5, 4, 1, 2, 8, 9].iter().map(|number| name(*number, Some(8))).collect();
        assert_eq!(arguments, ["rdi", "rsi", "rdx", "rcx", "r8", "r9"]);
        assert_eq!((name(2, Some(4)), name(8, Some(1))), ("ecx".into(), "r8d".into()));
        assert_eq!((name(17, None), name(49, None)), ("xmm0".into(), "dwarf-register-49".into()));
        assert_eq!(register_name(Machine::Aarch64, 4, Some(4)), "w4");
        assert_eq!(register_name(Machine::Aarch64, 31, Some(8)), "sp");
        assert_eq!(register_name(Machine::Other(21), 3, Some(8)), "dwarf-register-3");
    }
}
