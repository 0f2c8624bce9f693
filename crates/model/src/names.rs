//! The two ways of naming tensors. The rest of the crate speaks the publisher's names; this file turns them into
//! the ones that a checkpoint uses.

use serde::Serialize;

/// Who named the tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NameStyle {
    /// `layers.0.attn.wq_a.weight`, one tensor per expert matrix.
    Publisher,
    /// `model.layers.0.self_attn.q_a_proj.weight`, experts fused into three-dimensional tensors.
    Transformers,
}

/// Outside the layers: publisher's name, transformers name.
const MODEL_NAMES: [(&str, &str); 6] = [
    ("embed.weight", "embed_tokens.weight"),
    ("head.weight", "lm_head.weight"),
    ("norm.weight", "norm.weight"),
    ("hc_head_fn", "hc_head.hc_fn"),
    ("hc_head_base", "hc_head.hc_base"),
    ("hc_head_scale", "hc_head.hc_scale"),
];

/// Inside `layers.N.`: publisher's stem, transformers stem. A stem is followed by nothing or by a dot.
const LAYER_NAMES: [(&str, &str); 34] = [
    ("attn_norm", "input_layernorm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("hc_attn_fn", "attn_hc.fn"),
    ("hc_attn_base", "attn_hc.base"),
    ("hc_attn_scale", "attn_hc.scale"),
    ("hc_ffn_fn", "ffn_hc.fn"),
    ("hc_ffn_base", "ffn_hc.base"),
    ("hc_ffn_scale", "ffn_hc.scale"),
    ("attn.attn_sink", "self_attn.sinks"),
    ("attn.wq_a", "self_attn.q_a_proj"),
    ("attn.q_norm", "self_attn.q_a_norm"),
    ("attn.wq_b", "self_attn.q_b_proj"),
    ("attn.wkv", "self_attn.kv_proj"),
    ("attn.kv_norm", "self_attn.kv_norm"),
    ("attn.wo_a", "self_attn.o_a_proj"),
    ("attn.wo_b", "self_attn.o_b_proj"),
    ("attn.compressor.wkv", "self_attn.compressor.kv_proj"),
    ("attn.compressor.wgate", "self_attn.compressor.gate_proj"),
    ("attn.compressor.ape", "self_attn.compressor.position_bias"),
    ("attn.compressor.norm", "self_attn.compressor.kv_norm"),
    ("attn.indexer.wq_b", "self_attn.compressor.indexer.q_b_proj"),
    ("attn.indexer.weights_proj", "self_attn.compressor.indexer.scorer.weights_proj"),
    ("attn.indexer.compressor.wkv", "self_attn.compressor.indexer.kv_proj"),
    ("attn.indexer.compressor.wgate", "self_attn.compressor.indexer.gate_proj"),
    ("attn.indexer.compressor.ape", "self_attn.compressor.indexer.position_bias"),
    ("attn.indexer.compressor.norm", "self_attn.compressor.indexer.kv_norm"),
    ("ffn.gate.weight", "mlp.gate.weight"),
    ("ffn.gate.tid2eid", "mlp.gate.tid2eid"),
    ("ffn.gate.bias", "mlp.gate.e_score_correction_bias"),
    ("ffn.shared_experts.w1", "mlp.shared_experts.gate_proj"),
    ("ffn.shared_experts.w3", "mlp.shared_experts.up_proj"),
    ("ffn.shared_experts.w2", "mlp.shared_experts.down_proj"),
    // Transformers only: the rows of w1, then those of w3, of every expert; and every w2.
    ("ffn.experts.w1w3", "mlp.experts.gate_up_proj"),
    ("ffn.experts.w2", "mlp.experts.down_proj"),
];

/// How one checkpoint names things.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Names {
    pub style: NameStyle,
    /// `model.` or nothing.
    prefix: &'static str,
}

impl Names {
    /// Decides by the token embedding, which every checkpoint has. `None` when it has none under any known name.
    pub fn detect(has: impl Fn(&str) -> bool) -> Option<Self> {
        let candidates = [
            (NameStyle::Publisher, "", "embed.weight"),
            (NameStyle::Publisher, "model.", "model.embed.weight"),
            (NameStyle::Transformers, "model.", "model.embed_tokens.weight"),
            (NameStyle::Transformers, "", "embed_tokens.weight"),
        ];
        let found = candidates.into_iter().find(|(_, _, name)| has(name))?;
        Some(Names { style: found.0, prefix: found.1 })
    }

    /// The stored name for a publisher's name such as `layers.3.attn.wq_a.weight`.
    pub fn stored(&self, name: &str) -> String {
        if self.style == NameStyle::Publisher {
            return format!("{}{name}", self.prefix);
        }
        if let Some((layer, rest)) = name.strip_prefix("layers.").and_then(|rest| rest.split_once('.')) {
            return format!("{}layers.{layer}.{}", self.prefix, translate(rest));
        }
        match MODEL_NAMES.iter().find(|(publisher, _)| *publisher == name) {
            // The output head sits beside the model, not in it.
            Some((_, stored)) if stored.starts_with("lm_head") => stored.to_string(),
            Some((_, stored)) => format!("{}{stored}", self.prefix),
            None => format!("{}{name}", self.prefix),
        }
    }

    /// The layer that a stored name belongs to.
    pub fn layer_of(&self, stored: &str) -> Option<usize> {
        stored.strip_prefix(self.prefix)?.strip_prefix("layers.")?.split('.').next()?.parse().ok()
    }

    /// Whether a stored name belongs to a drafter: `mtp.*`, whatever the drafter is.
    pub fn is_drafter(stored: &str) -> bool {
        stored.strip_prefix("model.").unwrap_or(stored).starts_with("mtp.")
    }

    /// The drafting block that a stored name belongs to, when it belongs to one: `mtp.0.*` gives 0.
    pub fn drafter_block(stored: &str) -> Option<usize> {
        let block = stored.strip_prefix("model.").unwrap_or(stored).strip_prefix("mtp.")?;
        block.split('.').next()?.parse().ok()
    }
}

fn translate(name: &str) -> String {
    let tail_after =
        |stem: &str| name.strip_prefix(stem).filter(|tail| tail.is_empty() || tail.starts_with('.'));
    let renamed = LAYER_NAMES
        .iter()
        .find_map(|(publisher, stored)| Some(format!("{stored}{}", tail_after(publisher)?)));
    renamed.unwrap_or_else(|| name.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn style_and_prefix_are_read_off_the_embedding() {
        for (embedding, style, query, head) in [
            ("embed.weight", NameStyle::Publisher, "layers.7.attn.wq_a.weight", "head.weight"),
            (
                "model.embed.weight",
                NameStyle::Publisher,
                "model.layers.7.attn.wq_a.weight",
                "model.head.weight",
            ),
            (
                "model.embed_tokens.weight",
                NameStyle::Transformers,
                "model.layers.7.self_attn.q_a_proj.weight",
                "lm_head.weight",
            ),
            (
                "embed_tokens.weight",
                NameStyle::Transformers,
                "layers.7.self_attn.q_a_proj.weight",
                "lm_head.weight",
            ),
        ] {
            let names = Names::detect(|name| name == embedding).unwrap();
            assert_eq!(names.style, style);
            assert_eq!(names.stored("embed.weight"), embedding);
            assert_eq!(names.stored("head.weight"), head);
            assert_eq!(names.stored("layers.7.attn.wq_a.weight"), query);
            assert_eq!(names.layer_of(query), Some(7));
        }
        assert_eq!(Names::detect(|_| false), None);
    }

    #[test]
    fn stems_that_begin_alike_stay_apart() {
        assert_eq!(translate("ffn.experts.w1w3"), "mlp.experts.gate_up_proj");
        assert_eq!(translate("ffn.gate.bias"), "mlp.gate.e_score_correction_bias");
        assert_eq!(translate("attn.wkv.scale"), "self_attn.kv_proj.scale");
        assert_eq!(translate("attn.compressor.wkv.weight"), "self_attn.compressor.kv_proj.weight");
        assert_eq!(
            translate("attn.indexer.compressor.norm.weight"),
            "self_attn.compressor.indexer.kv_norm.weight"
        );
    }

    #[test]
    fn drafting_tensors_are_told_by_their_number() {
        assert_eq!(Names::drafter_block("mtp.0.enorm.weight"), Some(0));
        assert_eq!(Names::drafter_block("model.mtp.12.norm.weight"), Some(12));
        assert_eq!(Names::drafter_block("mtp.weight"), None);
        assert_eq!(Names::drafter_block("layers.0.mtp.0.x"), None);
    }
}
