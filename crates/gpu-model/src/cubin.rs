//! What each kernel of a cubin uses: registers, shared memory, stack, spills, barriers. A cubin is an ELF file; this reads
//! its section headers, symbols and attribute lists and trusts none of them. It runs nothing, disassembles nothing and
//! reads no PTX.
//!
//! The layout is undocumented. What is used here was found on output of CUDA 12.8 to 13.4. It agrees with `ptxas -v` on
//! the kernels of `tests/data/`, and with `cuobjdump --dump-resource-usage` on 10,429 kernels of CUDA libraries for sm_75
//! to sm_121 (registers, stack, shared memory; checked once by hand):
//!
//! * `.text.NAME` holds code; NAME is a kernel when its symbol carries the entry flag, else a device function.
//! * `.nv.info` lists attributes as (symbol, value): registers and local memory of every function.
//! * `.nv.info.NAME` lists attributes of one kernel: launch bounds, barriers, annotated instructions.
//! * `.nv.shared.NAME` has no bytes, only a size. From sm_90 on it includes the 1 KiB that the system takes from every CTA;
//!   cuobjdump's SHARED column includes it too, `ptxas -v` does not.
//! * ABI 7 (CUDA 12 up to sm_90) has the SM number in the low byte of the ELF flags, the barriers in bits 20 to 26 of the
//!   flags of `.text.NAME`, and registers in the high byte of its info. ABI 8 has the SM number in the two bytes above.

use crate::device::SHARED_RESERVE_BYTES;
use object::elf::{FileHeader64, SHT_SYMTAB, STT_FUNC, SectionHeader64};
use object::read::elf::{FileHeader, SectionHeader, SectionTable, Sym};
use object::{LittleEndian, SectionIndex};
use serde::Serialize;
use std::collections::BTreeMap;
use thiserror::Error;

type Header = FileHeader64<LittleEndian>;
const ENDIAN: LittleEndian = LittleEndian;

const MACHINE_CUDA: u16 = 190;
const MACHINE_X86_64: u16 = 62;
const MACHINE_AARCH64: u16 = 183;
const FAT_BINARY_MAGIC: [u8; 4] = 0xBA55_ED50_u32.to_le_bytes();
/// In a symbol's `st_other`: this function can be launched.
const ENTRY_FLAG: u8 = 0x10;
const ABI_SPLIT: u8 = 8;

/// Codes of attributes, named as in the tools' output.
mod attribute {
    pub const MAX_THREADS: u8 = 0x05;
    pub const REQUIRED_THREADS: u8 = 0x10;
    pub const FRAME_SIZE: u8 = 0x11;
    /// The frame with those of all functions called from it.
    pub const MIN_STACK_SIZE: u8 = 0x12;
    pub const PARAMETER_BYTES: u8 = 0x19;
    pub const REGISTER_COUNT: u8 = 0x2f;
    pub const NUM_BARRIERS: u8 = 0x4c;
    /// Pairs of a kind and an instruction's offset.
    pub const ANNOTATIONS: u8 = 0x55;
    pub const ANNOTATION_SPILL_OR_REFILL: u32 = 1;
}

/// A cubin's kernels, in the order of their names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cubin {
    /// 120 for sm_120 and sm_120a.
    pub sm: u32,
    pub kernels: Vec<KernelResources>,
}

/// What a launch of one kernel takes, as far as the compiler knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct KernelResources {
    /// As linked, which for C++ is the mangled name.
    pub name: String,
    pub registers_per_thread: u32,
    /// As declared in the source: without the system's KiB, and without dynamic shared memory, which only a launch knows.
    pub static_shared_bytes: u32,
    /// Local memory of a thread with the functions it calls: spilled registers, arrays indexed by data, arguments.
    pub stack_bytes: u32,
    /// Instructions that the compiler marked as storing or reloading a spilled register. With a stack and none of
    /// these, the source itself asked for local memory.
    pub spill_instructions: u32,
    /// Highest named barrier and one; all 16 where a barrier's number is held in a register.
    pub named_barriers: u32,
    /// From launch bounds or a required block size; `None` when the source states neither.
    pub max_threads: Option<u32>,
    pub parameter_bytes: u32,
    pub code_bytes: u64,
}

/// Why bytes are not a cubin that can be read. The caller knows the file's name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CubinError {
    #[error("the file is empty")]
    Empty,
    #[error("this is PTX, text that is yet to be compiled: give the cubin that ptxas makes of it")]
    Ptx,
    #[error("this is a fat binary: take the cubins out with `cuobjdump --extract-elf all`")]
    FatBinary,
    #[error("this is a program for the host: take the cubins out with `cuobjdump --extract-elf all`")]
    HostProgram,
    #[error("not an ELF file of 64 bits, little endian, as a cubin is ({detail})")]
    NotElf { detail: String },
    #[error("an ELF file for machine {machine}, not for CUDA ({MACHINE_CUDA})")]
    OtherMachine { machine: u16 },
    #[error("damaged or cut short: {what} cannot be read ({detail})")]
    Damaged { what: String, detail: String },
    #[error("kernel `{kernel}` states no register count: compiled by a toolkit that is not known here")]
    NoRegisters { kernel: String },
}

impl Cubin {
    /// Reads a cubin. Work and memory are bounded by the length of `bytes`.
    ///
    /// # Errors
    /// Anything that is not a whole cubin, with what it seems to be instead.
    pub fn read(bytes: &[u8]) -> Result<Self, CubinError> {
        let header = header(bytes)?;
        let sections = header.sections(ENDIAN, bytes).map_err(damaged("the section table"))?;
        // Read by nobody here, but last in the file: a file without them was cut short.
        header.program_headers(ENDIAN, bytes).map_err(damaged("the program header table"))?;
        let mut reader = Reader { bytes, sections, budget: Budget::for_file(bytes), sm: sm_number(header) };
        let mut functions = reader.launchable_functions(header.e_ident().abi_version)?;
        reader.read_sections(&mut functions)?;
        let kernels: Vec<KernelResources> = functions.kernels.into_values().collect();
        match kernels.iter().find(|kernel| kernel.registers_per_thread == 0) {
            Some(kernel) => Err(CubinError::NoRegisters { kernel: kernel.name.clone() }),
            None => Ok(Cubin { sm: reader.sm, kernels }),
        }
    }
}

/// Sections and names of a hostile file may all lie on the same bytes: together they may not claim much more than there
/// are. Honest files share only the tails of names.
struct Budget {
    bytes_left: usize,
}

impl Budget {
    fn for_file(bytes: &[u8]) -> Self {
        Budget { bytes_left: bytes.len().saturating_mul(4) }
    }

    fn spend(&mut self, bytes: usize, what: &str) -> Result<(), CubinError> {
        let left = self.bytes_left.checked_sub(bytes);
        self.bytes_left = left.ok_or_else(|| CubinError::Damaged {
            what: what.to_owned(),
            detail: "its parts claim more bytes than the file has".into(),
        })?;
        Ok(())
    }
}

struct Functions<'data> {
    kernels: BTreeMap<&'data str, KernelResources>,
    /// `.nv.info` speaks of functions by the number of their symbol.
    by_symbol: BTreeMap<u32, &'data str>,
}

struct Reader<'data> {
    bytes: &'data [u8],
    sections: SectionTable<'data, Header>,
    budget: Budget,
    sm: u32,
}

impl<'data> Reader<'data> {
    fn launchable_functions(&mut self, abi: u8) -> Result<Functions<'data>, CubinError> {
        let what = "the symbol table";
        let symbols = self.sections.symbols(ENDIAN, self.bytes, SHT_SYMTAB).map_err(damaged(what))?;
        let mut functions = Functions { kernels: BTreeMap::new(), by_symbol: BTreeMap::new() };
        for (index, symbol) in symbols.enumerate() {
            if symbol.st_type() != STT_FUNC || symbol.st_other().0 & ENTRY_FLAG == 0 {
                continue;
            }
            let name = symbols.symbol_name(ENDIAN, symbol).map_err(damaged(what))?;
            self.budget.spend(name.len(), what)?;
            let name = std::str::from_utf8(name).map_err(damaged(what))?;
            let section = SectionIndex(usize::from(symbol.st_shndx(ENDIAN).0));
            let section = self.sections.section(section).map_err(damaged(what))?;
            let mut kernel = KernelResources {
                name: name.to_owned(),
                code_bytes: section.sh_size(ENDIAN),
                ..Default::default()
            };
            if abi < ABI_SPLIT {
                kernel.registers_per_thread = section.sh_info(ENDIAN) >> 24;
                kernel.named_barriers = (section.sh_flags(ENDIAN).0 >> 20) as u32 & 0x7f;
            }
            functions.kernels.insert(name, kernel);
            functions.by_symbol.extend(u32::try_from(index.0).map(|index| (index, name)));
        }
        Ok(functions)
    }

    fn read_sections(&mut self, functions: &mut Functions) -> Result<(), CubinError> {
        // Section 0 is none.
        for index in 1..self.sections.len() {
            let section = self.sections.section(SectionIndex(index)).map_err(damaged("the section table"))?;
            let name = self.section_name(section)?;
            if name == ".nv.info" {
                let data = self.data(section, name)?;
                functions.read_attributes(data);
            } else if let Some(kernel) = functions.kernel(name, ".nv.info.") {
                kernel.read_attributes(self.data(section, name)?);
            } else if let Some(kernel) = functions.kernel(name, ".nv.shared.") {
                kernel.static_shared_bytes = declared_shared_bytes(section.sh_size(ENDIAN), self.sm);
            }
        }
        Ok(())
    }

    fn section_name(&mut self, section: &SectionHeader64<LittleEndian>) -> Result<&'data str, CubinError> {
        let what = "the name of a section";
        let name = self.sections.section_name(ENDIAN, section).map_err(damaged(what))?;
        self.budget.spend(name.len(), what)?;
        std::str::from_utf8(name).map_err(damaged(what))
    }

    fn data(
        &mut self,
        section: &SectionHeader64<LittleEndian>,
        name: &str,
    ) -> Result<&'data [u8], CubinError> {
        let data = section.data(ENDIAN, self.bytes).map_err(damaged(name))?;
        self.budget.spend(data.len(), name)?;
        Ok(data)
    }
}

impl Functions<'_> {
    fn kernel(&mut self, section: &str, prefix: &str) -> Option<&mut KernelResources> {
        self.kernels.get_mut(section.strip_prefix(prefix)?)
    }

    /// The list of the whole file: each value is a symbol's number and a number.
    fn read_attributes(&mut self, data: &[u8]) {
        for Attribute { code, value } in attributes(data) {
            let (Some(symbol), Some(number)) = (u32_at(value, 0), u32_at(value, 4)) else { continue };
            let kernel = self.by_symbol.get(&symbol).and_then(|name| self.kernels.get_mut(name));
            match (code, kernel) {
                (attribute::REGISTER_COUNT, Some(kernel)) => kernel.registers_per_thread = number,
                (attribute::FRAME_SIZE | attribute::MIN_STACK_SIZE, Some(kernel)) => {
                    kernel.stack_bytes = kernel.stack_bytes.max(number);
                }
                _ => {}
            }
        }
    }
}

impl KernelResources {
    fn read_attributes(&mut self, data: &[u8]) {
        for Attribute { code, value } in attributes(data) {
            match code {
                attribute::MAX_THREADS | attribute::REQUIRED_THREADS => {
                    self.max_threads = product_of_three(value)
                }
                attribute::PARAMETER_BYTES => self.parameter_bytes = u16_at(value, 0).unwrap_or(0).into(),
                attribute::NUM_BARRIERS => self.named_barriers = value.first().copied().unwrap_or(0).into(),
                attribute::ANNOTATIONS => self.spill_instructions = count_spills(value),
                _ => {}
            }
        }
    }
}

fn count_spills(pairs: &[u8]) -> u32 {
    let kinds = pairs.chunks_exact(8).map(|pair| u32_at(pair, 0));
    // A list is at most 64 KiB long.
    kinds.filter(|kind| *kind == Some(attribute::ANNOTATION_SPILL_OR_REFILL)).count() as u32
}

fn product_of_three(value: &[u8]) -> Option<u32> {
    let dimension = |index: usize| u32_at(value, 4 * index);
    dimension(0)?.checked_mul(dimension(1)?)?.checked_mul(dimension(2)?)
}

/// The section's size without the system's KiB, which from sm_90 on every such section has. A size that no GPU has is cut
/// to the largest number.
fn declared_shared_bytes(section_bytes: u64, sm: u32) -> u32 {
    let reserve = if sm >= 90 { u64::from(SHARED_RESERVE_BYTES) } else { 0 };
    u32::try_from(section_bytes.checked_sub(reserve).unwrap_or(section_bytes)).unwrap_or(u32::MAX)
}

struct Attribute<'data> {
    code: u8,
    value: &'data [u8],
}

/// Each attribute is a form, a code, and by form: nothing, one byte or two bytes in the next two, or there the length of
/// what follows. A list that is cut short or has an unknown form ends there.
fn attributes(mut data: &[u8]) -> impl Iterator<Item = Attribute<'_>> {
    std::iter::from_fn(move || {
        let (head, rest) = data.split_at_checked(4)?;
        let (value, rest) = match head[0] {
            1 => (&head[4..], rest),
            2 => (&head[2..3], rest),
            3 => (&head[2..4], rest),
            4 => rest.split_at_checked(usize::from(u16_at(head, 2)?))?,
            _ => return None,
        };
        data = rest;
        Some(Attribute { code: head[1], value })
    })
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().copied().map(u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_le_bytes)
}

fn header(bytes: &[u8]) -> Result<&Header, CubinError> {
    if bytes.is_empty() {
        return Err(CubinError::Empty);
    }
    if bytes.starts_with(&FAT_BINARY_MAGIC) {
        return Err(CubinError::FatBinary);
    }
    if looks_like_ptx(bytes) {
        return Err(CubinError::Ptx);
    }
    let header = Header::parse(bytes).map_err(|error| CubinError::NotElf { detail: error.to_string() })?;
    // The parser takes the byte order it is told; a cubin has only one.
    header.endian().map_err(|error: object::read::Error| CubinError::NotElf { detail: error.to_string() })?;
    match header.e_machine(ENDIAN).0 {
        MACHINE_CUDA => Ok(header),
        MACHINE_X86_64 | MACHINE_AARCH64 => Err(CubinError::HostProgram),
        machine => Err(CubinError::OtherMachine { machine }),
    }
}

fn looks_like_ptx(bytes: &[u8]) -> bool {
    let start = String::from_utf8_lossy(&bytes[..bytes.len().min(4096)]);
    start.lines().map(str::trim).any(|line| line.starts_with(".version ") || line.starts_with(".target sm_"))
}

fn sm_number(header: &Header) -> u32 {
    let flags = header.e_flags(ENDIAN).0;
    if header.e_ident().abi_version < ABI_SPLIT { flags & 0xff } else { (flags >> 8) & 0xffff }
}

fn damaged<E: ToString>(what: &str) -> impl FnOnce(E) -> CubinError + '_ {
    move |error| CubinError::Damaged { what: what.to_owned(), detail: error.to_string() }
}
