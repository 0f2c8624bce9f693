//! What is fixed for one step: the tokens of all rows laid end to end, and the tools to work on them.

use crate::buffers::Buffers;
use crate::capture::Capture;
use crate::matmul::{self, Input, Job, Output, Rows};
use crate::pools::Pools;
use crate::rope::Rotation;
use crate::{Isa, min_parallel_rows};
use overshot_backend::{Activations, Member, Numerics, PeerGone, Row, Shard};
use overshot_kv::PageTable;
use overshot_model::{Format, LayerKind, Matrix, RopeFrequencies, Spec};
use rayon::prelude::*;
use std::ops::Range;

/// RopeFrequencies of both kinds of layer.
pub struct Rope {
    pub window: RopeFrequencies,
    pub compressed: RopeFrequencies,
}

/// One token of a step.
pub struct Token {
    pub id: u32,
    pub position: usize,
    /// Index of its row in the plan.
    pub row: usize,
    window_rotation: Rotation,
    compressed_rotation: Rotation,
}

impl Token {
    pub fn rotation(&self, kind: LayerKind) -> &Rotation {
        match kind {
            LayerKind::Window => &self.window_rotation,
            LayerKind::Csa | LayerKind::Hca => &self.compressed_rotation,
        }
    }
}

pub struct Step<'a> {
    pub isa: Isa,
    pub spec: &'a Spec,
    pub numerics: Numerics,
    /// What of the model is computed here.
    pub shard: &'a Shard,
    /// Where the other ranks are met; none when this rank is all there is.
    pub member: Option<&'a Member>,
    pub rope: &'a Rope,
    pub rows: &'a [Row],
    /// All rows' tokens, row after row.
    pub tokens: Vec<Token>,
    pub pools: &'a mut Pools,
    pub buffers: &'a mut Buffers,
    pub capture: Option<&'a mut Capture>,
}

/// What compressors read of a step while they write its pools.
pub struct StepConstants<'a> {
    pub isa: Isa,
    pub rms_eps: f32,
    /// Of compressed layers.
    pub frequencies: &'a RopeFrequencies,
    pub rows: &'a [Row],
}

impl<'a> Step<'a> {
    pub fn constants(&self) -> StepConstants<'a> {
        let Step { isa, spec, rope, rows, .. } = *self;
        StepConstants { isa, rms_eps: spec.rms_eps, frequencies: &rope.compressed, rows }
    }

    /// `drawn` is what the plan before drew, by row, for placeholders. One whose row failed becomes token 0: it has to
    /// be some token, and its row fails when it comes to drawing.
    pub fn tokens_of(rows: &[Row], drawn: &[Option<u32>], rope: &Rope) -> Vec<Token> {
        let mut places: Vec<(usize, usize, u32)> = Vec::new();
        for (row, r) in rows.iter().enumerate() {
            places.extend(r.tokens.iter().enumerate().map(|(i, &id)| (row, r.start + i, id)));
            if let (Some(named), Some((.., id))) = (r.placeholder, places.last_mut()) {
                *id = drawn.get(named).copied().flatten().unwrap_or(0);
            }
        }
        places
            .into_par_iter()
            .with_min_len(min_parallel_rows(1024))
            .map(|(row, position, id)| Token {
                id,
                position,
                row,
                window_rotation: Rotation::at(&rope.window, position),
                compressed_rotation: Rotation::at(&rope.compressed, position),
            })
            .collect()
    }

    pub fn pages(&self, token: &Token) -> &'a PageTable {
        &self.rows[token.row].pages
    }

    /// `x` (`[tokens, cols]`) as input of matrices like `matrix`, with the activation rounding of this run.
    pub fn input<'x>(&self, matrix: &Matrix, x: &'x [f32]) -> Input<'x> {
        self.input_of(matrix.format, matrix.cols, x)
    }

    fn input_of<'x>(&self, format: Format, cols: usize, x: &'x [f32]) -> Input<'x> {
        if format.is_quantised() && self.numerics.act == Activations::E4m3 {
            return Input::rounded(format, x, cols);
        }
        Input::new(format, x, cols, 0..cols)
    }

    /// Products of one `x` with several matrices. Inputs are prepared once per stored format.
    pub fn project<const N: usize>(&mut self, x: &[f32], matrices: [&Matrix; N]) -> [Vec<f32>; N] {
        let count = x.len() / matrices[0].cols;
        let mut outputs = matrices.map(|matrix| self.buffers.take(count * matrix.rows));
        let mut inputs: Vec<(Format, Input)> = Vec::new();
        for matrix in matrices {
            if !inputs.iter().any(|(format, _)| *format == matrix.format) {
                inputs.push((matrix.format, self.input(matrix, x)));
            }
        }
        let jobs: Vec<Job> = matrices
            .iter()
            .zip(&mut outputs)
            .filter_map(|(matrix, output)| {
                let (_, input) = inputs.iter().find(|(format, _)| *format == matrix.format)?;
                let output = Output::new(output, matrix.rows);
                Some(Job { matrix, columns: 0..matrix.cols, input, rows: Rows::First(count), output })
            })
            .collect();
        matmul::run(self.isa, jobs);
        outputs
    }

    /// Product of `x` (`[tokens, columns.len()]`) with some columns of a matrix.
    pub fn project_columns(&mut self, x: &[f32], matrix: &Matrix, columns: Range<usize>) -> Vec<f32> {
        let count = x.len() / columns.len();
        let mut out = self.buffers.take(count * matrix.rows);
        let input = &self.input_of(matrix.format, columns.len(), x);
        let output = Output::new(&mut out, matrix.rows);
        matmul::run(self.isa, vec![Job { matrix, columns, input, rows: Rows::First(count), output }]);
        out
    }

    /// The sum of all ranks' `x`.
    pub fn all_reduce(&mut self, x: Vec<f32>) -> Result<Vec<f32>, PeerGone> {
        let Some(member) = self.member else { return Ok(x) };
        let mut sum = self.buffers.take(x.len());
        member.all_reduce(x, &mut sum)?;
        Ok(sum)
    }

    pub fn capture(&mut self, layer: usize, what: &str, values: &[f32]) {
        if let Some(capture) = &mut self.capture {
            capture.append(layer, what, values);
        }
    }
}
