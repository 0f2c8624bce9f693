//! Every bound on what a schema or pattern may cost. A grammar that exceeds one of the first group is refused; one
//! that exceeds the last two while its answer is made ends that answer.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one schema's JSON, of one pattern, or of all choices together.
    pub source_bytes: usize,
    /// Bytes of all schemas of a request together, definitions counted for each parameter that needs them.
    pub grammar_bytes: usize,
    /// Values nested in each other in a schema.
    pub depth: usize,
    /// Values of all kinds in a schema.
    pub values: usize,
    /// Properties of one object: the work of compiling them grows with the square of their number.
    pub properties: usize,
    /// Bytes of one pattern.
    pub pattern_bytes: usize,
    /// Functions that the grammar of an answer may call.
    pub functions: usize,
    /// Symbols of a compiled grammar.
    pub grammar_symbols: usize,
    /// Work of making the lexer, about 50 000 a millisecond.
    pub compile_fuel: u64,
    /// States that the lexer of a request may come to have, 1 to 2 kB each.
    pub lexer_states: usize,
    /// Alternatives that may be open at one place of an answer.
    pub open_alternatives: usize,
    /// Work of the lexer for one mask, about 14 000 a millisecond.
    pub mask_fuel: u64,
    /// Work of the parser for one mask, about 20 000 a millisecond.
    pub mask_items: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            source_bytes: 128 << 10,
            grammar_bytes: 1 << 20,
            depth: 64,
            values: 20_000,
            properties: 1000,
            pattern_bytes: 4096,
            functions: 256,
            grammar_symbols: 200_000,
            compile_fuel: 1_000_000,
            lexer_states: 50_000,
            open_alternatives: 2000,
            mask_fuel: 200_000,
            mask_items: 50_000,
        }
    }
}
