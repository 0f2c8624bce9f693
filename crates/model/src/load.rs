//! [`Model`]: finding every parameter of a [`Spec`] in a checkpoint, and nothing else in it.

use crate::checkpoint::Checkpoint;
use crate::config::{Config, Drafter};
use crate::locate::{locate, read_config};
use crate::names::Names;
use crate::stored::{Reader, Stored, Values};
use crate::summary::Summary;
use crate::{
    Attention, Bytes, Compressor, Expert, FeedForward, Format, HEAD_DIM, HyperConnection, INDEX_DIM, Indexer,
    Layer, LayerKind, LayerSpec, Matrix, ModelError, Routing, RoutingKind, STREAMS, Spec, Weights,
};
use rayon::prelude::*;
use safetensors::Dtype;
use std::path::{Path, PathBuf};

/// An opened checkpoint.
#[derive(Clone, Debug)]
pub struct Model {
    pub spec: Spec,
    pub weights: Weights,
    pub summary: Summary,
    /// Where `config.json` was found: the place to look for the tokenizer. `None` for a built-in model.
    pub folder: Option<PathBuf>,
}

impl Model {
    /// Opens a folder with `config.json` and `model.safetensors` or an index of shards, a Hugging Face cache folder
    /// (`models--org--name`), or a `.safetensors` file beside its `config.json`.
    ///
    /// Matrices stay mapped in their stored format. Files must not be changed while the model is in use.
    ///
    /// # Errors
    /// One sentence that names the file and the tensor or field at fault; see [`ModelError`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ModelError> {
        let located = locate(path.as_ref())?;
        let config = Config::parse(&read_config(&located.config)?, &located.config.display().to_string())?;
        let checkpoint = Checkpoint::open(&located.weights)?;
        Model::load(config, &checkpoint, Some(located.folder))
    }

    /// A model whose files are already in memory: the text of its `config.json` and one whole safetensors file.
    pub fn from_parts(config_json: &str, weights: Bytes) -> Result<Self, ModelError> {
        let config = Config::parse(config_json, "config.json")?;
        let checkpoint = Checkpoint::from_bytes("model.safetensors", weights)?;
        Model::load(config, &checkpoint, None)
    }

    fn load(config: Config, checkpoint: &Checkpoint, folder: Option<PathBuf>) -> Result<Self, ModelError> {
        let Config { spec, drafter } = config;
        let Some(names) = Names::detect(|name| checkpoint.contains(name)) else {
            let file = checkpoint.label.clone();
            return Err(ModelError::MissingTensor { file, tensor: "embed.weight".to_string() });
        };
        let weights = Loader { reader: Reader { checkpoint, names }, spec: &spec }.weights()?;
        check_surplus(checkpoint)?;
        let drafter = carried(drafter, checkpoint);
        let summary = Summary::new(&spec, &weights, checkpoint, names, drafter);
        Ok(Model { spec, weights, summary, folder })
    }
}

/// What the tensors carry of the drafter that the configuration announces: conversions drop the blocks and keep the
/// field.
fn carried(announced: Drafter, checkpoint: &Checkpoint) -> Drafter {
    if announced == Drafter::DSpark {
        return announced;
    }
    let mut blocks: Vec<usize> =
        checkpoint.iter().filter_map(|(name, _)| Names::drafter_block(name)).collect();
    blocks.sort_unstable();
    blocks.dedup();
    if blocks.is_empty() { Drafter::None } else { Drafter::Mtp { blocks: blocks.len() } }
}

fn check_surplus(checkpoint: &Checkpoint) -> Result<(), ModelError> {
    let mut unused = checkpoint.unused(Names::is_drafter);
    match unused.next() {
        None => Ok(()),
        Some((name, tensor)) => Err(ModelError::SurplusTensor {
            file: tensor.file.to_string(),
            tensor: name.to_string(),
            others: unused.count(),
        }),
    }
}

struct Loader<'a> {
    reader: Reader<'a>,
    spec: &'a Spec,
}

impl Loader<'_> {
    fn weights(&self) -> Result<Weights, ModelError> {
        let (vocab, width) = (self.spec.vocab_size, self.spec.hidden_size);
        let embed = self.reader.matrix("embed", vocab, width, Stored::Float)?;
        let head = self.reader.matrix("head", vocab, width, Stored::Float)?;
        let norm = self.norm("norm", width)?;
        let hc_head = self.hyper_connection("hc_head", STREAMS, 1)?;
        // Scales are read here, a sixteenth of the checkpoint, so layers go in parallel. Collected whole, so that the
        // first fault in layer order is the one reported.
        let specs: Vec<(usize, LayerSpec)> = self.spec.layers.iter().copied().enumerate().collect();
        let layers: Vec<_> = specs.into_par_iter().map(|(index, layer)| self.layer(index, layer)).collect();
        let layers = layers.into_iter().collect::<Result<Vec<_>, _>>()?;
        Ok(Weights { embed, layers, hc_head, norm, head })
    }

    fn layer(&self, index: usize, layer: LayerSpec) -> Result<Layer, ModelError> {
        let (name, width) = (format!("layers.{index}"), self.spec.hidden_size);
        let sites = (2 + STREAMS) * STREAMS;
        Ok(Layer {
            hc_attn: self.hyper_connection(&format!("{name}.hc_attn"), sites, 3)?,
            attn_norm: self.norm(&format!("{name}.attn_norm"), width)?,
            attn: self.attention(&format!("{name}.attn"), layer.kind)?,
            hc_ffn: self.hyper_connection(&format!("{name}.hc_ffn"), sites, 3)?,
            ffn_norm: self.norm(&format!("{name}.ffn_norm"), width)?,
            ffn: self.feed_forward(&format!("{name}.ffn"), layer.routing)?,
        })
    }

    fn hyper_connection(
        &self,
        name: &str,
        rows: usize,
        scales: usize,
    ) -> Result<HyperConnection, ModelError> {
        let cols = STREAMS * self.spec.hidden_size;
        Ok(HyperConnection {
            mix: self.reader.bare_matrix(&format!("{name}_fn"), rows, cols, Stored::Exact)?,
            base: self.reader.vector(&format!("{name}_base"), &[rows], Values::Finite)?,
            scale: self.reader.vector(&format!("{name}_scale"), &[scales], Values::Finite)?,
        })
    }

    fn norm(&self, name: &str, width: usize) -> Result<Vec<f32>, ModelError> {
        self.reader.vector(&format!("{name}.weight"), &[width], Values::Finite)
    }

    fn attention(&self, name: &str, kind: LayerKind) -> Result<Attention, ModelError> {
        let Spec { hidden_size: width, heads, q_lora_rank, o_groups, o_lora_rank, .. } = *self.spec;
        let linear = |part: &str, rows, cols| {
            self.reader.matrix(&format!("{name}.{part}"), rows, cols, Stored::Linear)
        };
        let wo_a = linear("wo_a", o_groups * o_lora_rank, heads / o_groups * HEAD_DIM)?;
        let compressor = match kind {
            LayerKind::Window => None,
            LayerKind::Csa | LayerKind::Hca => {
                Some(self.compressor(&format!("{name}.compressor"), kind, HEAD_DIM)?)
            }
        };
        let indexer =
            if kind == LayerKind::Csa { Some(self.indexer(&format!("{name}.indexer"))?) } else { None };
        Ok(Attention {
            wq_a: linear("wq_a", q_lora_rank, width)?,
            q_norm: self.norm(&format!("{name}.q_norm"), q_lora_rank)?,
            wq_b: linear("wq_b", heads * HEAD_DIM, q_lora_rank)?,
            wkv: linear("wkv", HEAD_DIM, width)?,
            kv_norm: self.norm(&format!("{name}.kv_norm"), HEAD_DIM)?,
            sink: self.reader.vector(
                &format!("{name}.attn_sink"),
                &[heads],
                Values::FiniteOrMinusInfinity,
            )?,
            wo_a: (0..o_groups).map(|i| wo_a.slice_rows(i * o_lora_rank..(i + 1) * o_lora_rank)).collect(),
            wo_b: linear("wo_b", width, o_groups * o_lora_rank)?,
            compressor,
            indexer,
        })
    }

    fn compressor(&self, name: &str, kind: LayerKind, entry: usize) -> Result<Compressor, ModelError> {
        let width = self.spec.hidden_size;
        // Ratio 4 overlaps: every token has a half for its own window and one for the next.
        let channels = if kind == LayerKind::Csa { 2 * entry } else { entry };
        Ok(Compressor {
            wkv: self.reader.matrix(&format!("{name}.wkv"), channels, width, Stored::Float)?,
            wgate: self.reader.matrix(&format!("{name}.wgate"), channels, width, Stored::Float)?,
            ape: self.reader.vector(&format!("{name}.ape"), &[kind.ratio(), channels], Values::Finite)?,
            norm: self.norm(&format!("{name}.norm"), entry)?,
        })
    }

    fn indexer(&self, name: &str) -> Result<Indexer, ModelError> {
        let Spec { hidden_size: width, index_heads, q_lora_rank, .. } = *self.spec;
        let (queries, weights) = (format!("{name}.wq_b"), format!("{name}.weights_proj"));
        Ok(Indexer {
            wq_b: self.reader.matrix(&queries, index_heads * INDEX_DIM, q_lora_rank, Stored::Linear)?,
            weights_proj: self.reader.matrix(&weights, index_heads, width, Stored::Float)?,
            compressor: self.compressor(&format!("{name}.compressor"), LayerKind::Csa, INDEX_DIM)?,
        })
    }

    fn feed_forward(&self, name: &str, routing: RoutingKind) -> Result<FeedForward, ModelError> {
        let Spec { hidden_size: width, experts, .. } = *self.spec;
        let gate = format!("{name}.gate");
        Ok(FeedForward {
            gate: self.reader.matrix(&gate, experts, width, Stored::Float)?,
            routing: match routing {
                RoutingKind::Hash => Routing::Hash { experts_of_token: self.expert_table(&gate)? },
                RoutingKind::Learned => {
                    let bias = format!("{gate}.bias");
                    Routing::Learned {
                        bias: self.reader.vector(&bias, &[experts], Values::FiniteOrMinusInfinity)?,
                    }
                }
            },
            experts: self.experts(&format!("{name}.experts"))?,
            shared: self.expert(&format!("{name}.shared_experts"), Stored::Linear)?,
        })
    }

    fn expert(&self, name: &str, stored: Stored) -> Result<Expert, ModelError> {
        let (width, inner) = (self.spec.hidden_size, self.spec.expert_width);
        let expert = Expert {
            w1: self.reader.matrix(&format!("{name}.w1"), inner, width, stored)?,
            w2: self.reader.matrix(&format!("{name}.w2"), width, inner, stored)?,
            w3: self.reader.matrix(&format!("{name}.w3"), inner, width, stored)?,
        };
        // One pass over the input computes both.
        let (w1, w3) = (format!("{name}.w1.weight"), format!("{name}.w3.weight"));
        self.require_format(&w3, expert.w3.format, &w1, expert.w1.format)?;
        Ok(expert)
    }

    fn experts(&self, name: &str) -> Result<Vec<Expert>, ModelError> {
        let Spec { hidden_size: width, experts, expert_width: inner, .. } = *self.spec;
        if !self.reader.is_fused() {
            let experts: Vec<Expert> = (0..experts)
                .map(|index| self.expert(&format!("{name}.{index}"), Stored::Expert))
                .collect::<Result<_, _>>()?;
            self.require_one_format(name, &experts)?;
            return Ok(experts);
        }
        let up = self.reader.stack(&format!("{name}.w1w3"), experts, 2 * inner, width, Stored::Expert)?;
        let down = self.reader.stack(&format!("{name}.w2"), experts, width, inner, Stored::Expert)?;
        if let (Some(up), Some(down)) = (up.first(), down.first()) {
            self.require_format(&format!("{name}.w2"), down.format, &format!("{name}.w1w3"), up.format)?;
        }
        let split = |(up, w2): (Matrix, Matrix)| Expert {
            w1: up.slice_rows(0..inner),
            w2,
            w3: up.slice_rows(inner..2 * inner),
        };
        Ok(up.into_iter().zip(down).map(split).collect())
    }

    /// A layer runs its routed experts together, so their matrices must all be stored alike.
    fn require_one_format(&self, name: &str, experts: &[Expert]) -> Result<(), ModelError> {
        let Some(expected) = experts.first().map(|expert| expert.w1.format) else { return Ok(()) };
        let first = format!("{name}.0.w1.weight");
        for (index, expert) in experts.iter().enumerate() {
            for (part, matrix) in [("w1", &expert.w1), ("w2", &expert.w2), ("w3", &expert.w3)] {
                self.require_format(
                    &format!("{name}.{index}.{part}.weight"),
                    matrix.format,
                    &first,
                    expected,
                )?;
            }
        }
        Ok(())
    }

    /// Refuses `tensor` unless its format is that of `other`, with which it is used in one go.
    fn require_format(
        &self,
        tensor: &str,
        found: Format,
        other: &str,
        expected: Format,
    ) -> Result<(), ModelError> {
        if found == expected {
            return Ok(());
        }
        let other = self.reader.names.stored(other);
        let (found, expected) = (found.name(), expected.name());
        let reason = format!("is stored as {found} but `{other}` as {expected}: they must be stored alike");
        Err(self.reader.tensor(tensor)?.value_error(reason))
    }

    fn expert_table(&self, gate: &str) -> Result<Vec<u16>, ModelError> {
        let Spec { vocab_size, experts, experts_per_token, .. } = *self.spec;
        let found = self.reader.tensor(&format!("{gate}.tid2eid"))?;
        let bytes = &found.tensor.bytes;
        let wide = |eight: &[u8]| eight.try_into().map_or(-1, i64::from_le_bytes);
        let narrow = |four: &[u8]| four.try_into().map_or(-1, |four| i64::from(i32::from_le_bytes(four)));
        let ids: Box<dyn Iterator<Item = i64>> = match found.tensor.dtype {
            Dtype::I64 => Box::new(bytes.chunks_exact(8).map(wide)),
            Dtype::I32 => Box::new(bytes.chunks_exact(4).map(narrow)),
            _ => return Err(found.dtype_error("I64")),
        };
        found.check_shape(&[vocab_size, experts_per_token])?;
        let mut table = Vec::with_capacity(vocab_size * experts_per_token);
        for (index, id) in ids.enumerate() {
            match u16::try_from(id) {
                Ok(expert) if usize::from(expert) < experts => table.push(expert),
                _ => {
                    let token = index / experts_per_token;
                    let reason =
                        format!("sends token {token} to expert {id}, but there are {experts} experts");
                    return Err(found.value_error(reason));
                }
            }
        }
        Ok(table)
    }
}
