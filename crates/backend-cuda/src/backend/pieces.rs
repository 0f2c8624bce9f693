//! What lies where in a device's arena of weights: pieces of mapped files and small things made on the host, each under its
//! name. Copies pieces out; who moves them to a device, and when, is `loading.rs`.

use crate::gpu::DeviceAddress;
use overshot_model::Matrix;
use std::fmt;
use std::ops::Range;

/// Of every piece's place.
const ALIGN: usize = 256;

/// What no kernel reads: NaN, whatever it is taken for.
const GAP_BYTE: u8 = 0xff;

/// A part of the model that has several tensors, for names of pieces: `layers.3.ffn.experts.17`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    pub layer: Option<usize>,
    pub part: &'static str,
    /// Of the expert, or of the group of heads.
    pub number: Option<usize>,
}

impl Group {
    pub fn of_layer(layer: usize, part: &'static str) -> Self {
        Group { layer: Some(layer), part, number: None }
    }

    pub fn numbered(self, number: usize) -> Self {
        Group { number: Some(number), ..self }
    }

    /// Tensors outside of layers.
    pub const MODEL: Group = Group { layer: None, part: "", number: None };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    group: Group,
    tensor: &'static str,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Group { layer, part, number } = self.group;
        if let Some(layer) = layer {
            write!(f, "layers.{layer}.")?;
        }
        if !part.is_empty() {
            write!(f, "{part}.")?;
        }
        if let Some(number) = number {
            write!(f, "{number}.")?;
        }
        f.write_str(self.tensor)
    }
}

enum Contents {
    /// Of each row the bytes in `columns`.
    Data {
        matrix: Matrix,
        columns: Range<usize>,
    },
    /// Part of a matrix's scales.
    Scales {
        matrix: Matrix,
        range: Range<usize>,
    },
    Made(Vec<u8>),
}

pub struct Piece {
    pub name: Name,
    at: usize,
    contents: Contents,
}

impl Piece {
    pub fn len(&self) -> usize {
        match &self.contents {
            Contents::Data { matrix, columns } => matrix.rows * columns.len(),
            Contents::Scales { range, .. } => range.len(),
            Contents::Made(bytes) => bytes.len(),
        }
    }

    fn end(&self) -> usize {
        self.at + self.len()
    }

    /// Its bytes from `from` on, as many as `out` takes.
    fn copy(&self, from: usize, out: &mut [u8]) {
        let end = from + out.len();
        match &self.contents {
            Contents::Made(bytes) => out.copy_from_slice(&bytes[from..end]),
            Contents::Scales { matrix, range } => {
                out.copy_from_slice(&matrix.scales()[range.start + from..range.start + end]);
            }
            Contents::Data { matrix, columns } if columns.len() == matrix.row_bytes() => {
                out.copy_from_slice(&matrix.data()[from..end]);
            }
            Contents::Data { matrix, columns } => {
                let (mut at, mut rest) = (from, out);
                while !rest.is_empty() {
                    let (row, column) = (at / columns.len(), at % columns.len());
                    let count = rest.len().min(columns.len() - column);
                    let (now, later) = rest.split_at_mut(count);
                    let start = columns.start + column;
                    now.copy_from_slice(&matrix.row(row)[start..start + count]);
                    (at, rest) = (at + count, later);
                }
            }
        }
    }

    /// Asks for the pages of the file behind the bytes of `range`.
    fn will_need(&self, range: Range<usize>) {
        if let Contents::Data { matrix, columns } = &self.contents {
            let row_bytes = matrix.row_bytes();
            let rows = range.start / columns.len()..range.end.div_ceil(columns.len());
            let whole = columns.len() == row_bytes;
            matrix.will_need(if whole { range } else { rows.start * row_bytes..rows.end * row_bytes });
        }
    }
}

/// Puts one piece behind the other. Without a list of pieces it only counts, and reads nothing.
pub struct Arena {
    base: DeviceAddress,
    used: usize,
    pieces: Option<Vec<Piece>>,
}

impl Arena {
    pub fn counting() -> Self {
        Arena { base: DeviceAddress::NULL, used: 0, pieces: None }
    }

    pub fn at(base: DeviceAddress) -> Self {
        Arena { base, used: 0, pieces: Some(Vec::new()) }
    }

    pub fn used(&self) -> usize {
        self.used
    }

    pub fn into_pieces(self) -> Pieces {
        Pieces { pieces: self.pieces.unwrap_or_default(), end: self.used }
    }

    fn place(&mut self, name: Name, len: usize, contents: impl FnOnce() -> Contents) -> DeviceAddress {
        let at = self.used;
        self.used = (at + len).next_multiple_of(ALIGN);
        // Nothing to copy, as the scales of formats without any.
        if let Some(pieces) = self.pieces.as_mut().filter(|_| len > 0) {
            pieces.push(Piece { name, at, contents: contents() });
        }
        self.base.plus(at)
    }

    /// Bytes made on the host, when they are wanted.
    pub fn made(
        &mut self,
        group: Group,
        tensor: &'static str,
        len: usize,
        bytes: impl FnOnce() -> Vec<u8>,
    ) -> DeviceAddress {
        self.place(Name { group, tensor }, len, || Contents::Made(bytes()))
    }

    /// Of each row of a matrix the bytes in `columns`.
    pub fn data(
        &mut self,
        group: Group,
        tensor: &'static str,
        matrix: &Matrix,
        columns: Range<usize>,
    ) -> DeviceAddress {
        let len = matrix.rows * columns.len();
        self.place(Name { group, tensor }, len, || Contents::Data { matrix: matrix.clone(), columns })
    }

    pub fn scales(
        &mut self,
        group: Group,
        tensor: &'static str,
        matrix: &Matrix,
        range: Range<usize>,
    ) -> DeviceAddress {
        let len = range.len();
        self.place(Name { group, tensor }, len, || Contents::Scales { matrix: matrix.clone(), range })
    }
}

/// All pieces of an arena, by place.
pub struct Pieces {
    pieces: Vec<Piece>,
    end: usize,
}

impl Pieces {
    /// Bytes of the arena, gaps included.
    pub fn bytes(&self) -> usize {
        self.end
    }

    fn within(&self, range: &Range<usize>) -> &[Piece] {
        let first = self.pieces.partition_point(|piece| piece.end() <= range.start);
        let behind = self.pieces.partition_point(|piece| piece.at < range.end);
        &self.pieces[first.min(behind)..behind]
    }

    /// Writes what the arena has in `range` to `out`, which is as long.
    pub fn copy(&self, range: &Range<usize>, out: &mut [u8]) {
        let mut written = 0;
        for piece in self.within(range) {
            let (from, to) = (piece.at.max(range.start), piece.end().min(range.end));
            let (start, end) = (from - range.start, to - range.start);
            out[written..start].fill(GAP_BYTE);
            piece.copy(from - piece.at, &mut out[start..end]);
            written = end;
        }
        out[written..].fill(GAP_BYTE);
    }

    /// Asks for the pages of files behind `range`, for a copy that comes later.
    pub fn will_need(&self, range: &Range<usize>) {
        for piece in self.within(range) {
            piece.will_need(piece.at.max(range.start) - piece.at..piece.end().min(range.end) - piece.at);
        }
    }

    /// What lies in `range`, for people.
    pub fn names(&self, range: &Range<usize>) -> String {
        match self.within(range) {
            [] => "nothing".into(),
            [piece] => piece.name.to_string(),
            [first, .., last] => format!("{} to {}", first.name, last.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overshot_model::{Bytes, Format};

    fn matrix(rows: usize, cols: usize) -> Matrix {
        let data = (0..rows * cols * 4).map(|byte| byte as u8).collect();
        Matrix::new(Format::F32, rows, cols, Bytes::from_vec(data), Bytes::empty())
    }

    fn arena() -> Pieces {
        let mut arena = Arena::at(DeviceAddress(1 << 20));
        let (whole, cut) = (matrix(3, 40), matrix(70, 5));
        let experts = Group::of_layer(3, "ffn.experts");
        assert_eq!(arena.data(Group::MODEL, "embed", &whole, 0..160), DeviceAddress(1 << 20));
        assert_eq!(arena.data(experts.numbered(17), "w1", &cut, 4..12), DeviceAddress((1 << 20) + 512));
        assert_eq!(arena.made(experts, "table", 3, || vec![7; 3]), DeviceAddress((1 << 20) + 512 + 768));
        assert_eq!(arena.used(), 512 + 768 + 256);
        arena.into_pieces()
    }

    #[test]
    fn any_range_is_what_the_whole_has_there() {
        let pieces = arena();
        let mut whole = vec![0; pieces.bytes()];
        pieces.copy(&(0..pieces.bytes()), &mut whole);
        assert_eq!(&whole[..4], [0, 1, 2, 3]);
        assert_eq!((whole[479], whole[480], whole[511]), (479_usize as u8, GAP_BYTE, GAP_BYTE));
        // Rows of 20 bytes, of which those from 4 on are taken, 8 each.
        assert_eq!(whole[512..528], [4, 5, 6, 7, 8, 9, 10, 11, 24, 25, 26, 27, 28, 29, 30, 31]);
        assert_eq!(whole[1280..1284], [7, 7, 7, GAP_BYTE]);
        let mut random = fastrand::Rng::with_seed(5);
        for _ in 0..300 {
            let start = random.usize(0..whole.len());
            let range = start..random.usize(start..=whole.len());
            let mut part = vec![1; range.len()];
            pieces.will_need(&range);
            pieces.copy(&range, &mut part);
            assert!(part == whole[range.clone()], "{range:?}");
        }
    }

    #[test]
    fn ranges_are_named_by_what_is_in_them() {
        let pieces = arena();
        assert_eq!(pieces.names(&(600..700)), "layers.3.ffn.experts.17.w1");
        assert_eq!(pieces.names(&(0..1536)), "embed to layers.3.ffn.experts.table");
        assert_eq!(pieces.names(&(500..510)), "nothing");
    }

    #[test]
    fn counting_makes_nothing() {
        let mut arena = Arena::counting();
        arena.made(Group::MODEL, "never", 300, || panic!("was made"));
        assert_eq!((arena.used(), arena.into_pieces().pieces.len()), (512, 0));
    }
}
