//! Which family a kernel belongs to: rules in a TOML file that people edit, with ours as a start (`families.toml`).
//!
//! No regular expressions: a pattern is found anywhere in a name, and `*` stands for anything in between. Kernel names are
//! mangled, templated and hundreds of characters long; what people know of them is a word or two.

use super::{FAMILIES_MAX, HOST_GAP};
use crate::LabError;
use serde::Deserialize;
use std::path::Path;

/// The rules that are used unless others are given.
pub const DEFAULT_RULES: &str = include_str!("families.toml");

/// What no rule matches.
pub const OTHER: &str = "other";

const FILE_BYTES_MAX: u64 = 1 << 20;
const PATTERNS_MAX: usize = 4096;

#[derive(Clone, Debug)]
pub struct FamilyRules {
    families: Vec<Rule>,
}

#[derive(Clone, Debug)]
struct Rule {
    name: String,
    patterns: Vec<Pattern>,
}

/// Words that follow one another in a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(Vec<String>);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    family: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    kernels: Vec<String>,
}

impl Pattern {
    /// `None` when nothing is left to look for.
    pub fn new(text: &str) -> Option<Self> {
        let words: Vec<String> =
            text.split('*').filter(|word| !word.is_empty()).map(str::to_lowercase).collect();
        (!words.is_empty()).then_some(Pattern(words))
    }

    pub fn matches(&self, name: &str) -> bool {
        self.matches_lower(&name.to_lowercase())
    }

    fn matches_lower(&self, name: &str) -> bool {
        let mut rest = name;
        self.0.iter().all(|word| match rest.find(word.as_str()) {
            Some(at) => {
                rest = &rest[at + word.len()..];
                true
            }
            None => false,
        })
    }
}

impl FamilyRules {
    /// # Errors
    /// A file that cannot be read or is no set of rules.
    pub fn read(path: &Path) -> Result<Self, LabError> {
        let bad = |what: String| LabError::BadProfile { subject: path.display().to_string(), what };
        let metadata = std::fs::metadata(path).map_err(|error| bad(format!("cannot be opened: {error}")))?;
        if !metadata.is_file() || metadata.len() > FILE_BYTES_MAX {
            return Err(bad("no file of families: they are TOML text of at most 1 MiB".into()));
        }
        let text = std::fs::read_to_string(path).map_err(|error| bad(format!("cannot be read: {error}")))?;
        FamilyRules::parse(&text).map_err(bad)
    }

    /// # Errors
    /// The rest of a sentence that says what is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        let file: File = toml_edit::de::from_str(text).map_err(|error| {
            let line =
                error.span().map_or(1, |span| text[..span.start.min(text.len())].lines().count().max(1));
            format!("line {line}: {}", error.message())
        })?;
        let mut rules = FamilyRules { families: Vec::new() };
        let mut patterns_in_all = 0;
        for Entry { name, kernels } in file.family {
            if name.is_empty() || name == HOST_GAP || name == OTHER {
                return Err(format!("a family cannot be called `{name}`"));
            }
            if rules.families.iter().any(|rule| rule.name == name) {
                return Err(format!("the family `{name}` is there twice"));
            }
            let patterns = kernels.iter().map(|kernel| {
                Pattern::new(kernel)
                    .ok_or_else(|| format!("`{name}` has a pattern that matches everything: `{kernel}`"))
            });
            let patterns = patterns.collect::<Result<Vec<_>, _>>()?;
            patterns_in_all += patterns.len();
            rules.families.push(Rule { name, patterns });
        }
        if rules.families.is_empty() {
            return Err("it has no [[family]] with a name and kernels".into());
        }
        if rules.families.len() > FAMILIES_MAX - 2 || patterns_in_all > PATTERNS_MAX {
            return Err(format!("at most {} families and {PATTERNS_MAX} patterns", FAMILIES_MAX - 2));
        }
        Ok(rules)
    }

    /// The names of all families, `other` last.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.families.iter().map(|rule| rule.name.as_str()).chain([OTHER])
    }

    /// The place among `names` of the family of a kernel.
    pub fn family_of(&self, kernel: &str) -> usize {
        let name = kernel.to_lowercase();
        let matches = |rule: &Rule| rule.patterns.iter().any(|pattern| pattern.matches_lower(&name));
        self.families.iter().position(matches).unwrap_or(self.families.len())
    }
}

impl Default for FamilyRules {
    fn default() -> Self {
        FamilyRules::parse(DEFAULT_RULES).expect("our own rules are tested")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_of_the_serving_stacks_are_known() {
        let rules = FamilyRules::default();
        let names: Vec<&str> = rules.names().collect();
        for (kernel, family) in [
            ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "communication"),
            ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 4>(...)", "communication"),
            ("void deep_ep::internode_ll::dispatch<true, 3, 10, 7168>(...)", "communication"),
            ("sm90_fp8_paged_mqa_logits", "indexer"),
            ("void flash_fwd_splitkv_mla_kernel<Flash_fwd_kernel_traits_mla<576>>", "attention"),
            (
                "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<...>>>",
                "attention",
            ),
            ("_fwd_grouped_kernel_stage1_split_kv", "attention"),
            ("BatchDecodeWithPagedKVCacheKernel", "attention"),
            ("fmhaSm100aKernel_QkvE4m3OBfloat16HQk576HV512", "attention"),
            ("void flash_attn_ext_vec<128, 1>(char const*, ...)", "attention"),
            ("fused_moe_kernel", "experts"),
            ("bmm_Bfloat16_E2m1E2m1_Fp32_t128x8x512u2_s6_et64x8_m64x8x64", "experts"),
            ("deep_gemm::sm90_fp8_m_grouped_gemm_masked_1d2d", "experts"),
            ("void mul_mat_q<(ggml_type)12, 64, false>(char const*, ...)", "dense matmul"),
            ("nvjet_tst_64x8_64x16_4x1_v_bz_TNN", "dense matmul"),
            ("sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64", "dense matmul"),
            (
                "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>>>",
                "sampling",
            ),
            ("void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>(...)", "norm"),
            ("void vllm::rms_norm_kernel<c10::BFloat16, 8>(...)", "norm"),
            ("void vllm::reshape_and_cache_flash_kernel<...>", "rotary and cache"),
            ("void vllm::rotary_embedding_kernel<c10::BFloat16, true>(...)", "rotary and cache"),
            ("_per_token_group_quant_fp8", "quantize"),
            ("Memcpy HtoD (Pinned -> Device)", "copy"),
            (
                "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>",
                "pointwise",
            ),
            ("aten::addmm", "dense matmul"),
            ("aten::scaled_dot_product_attention", "attention"),
            ("void flashinfer::sampling::TopPSamplingFromProbKernel<1024u>(...)", "sampling"),
            ("my_own_kernel", OTHER),
        ] {
            assert_eq!(names[rules.family_of(kernel)], family, "{kernel}");
        }
    }

    #[test]
    fn patterns_are_words_in_their_order() {
        let pattern = Pattern::new("Mul_*_id").unwrap();
        assert!(pattern.matches("ggml_mul_mat_ID") && !pattern.matches("id_mul_"));
        assert!(Pattern::new("*").is_none() && Pattern::new("").is_none());
    }

    #[test]
    fn what_are_no_rules_is_named() {
        for (text, part) in [
            ("", "missing field `family`"),
            ("family = 3", "line 1"),
            ("[[family]]\nname = \"a\"\nkernel = []", "unknown field `kernel`"),
            ("[[family]]\nname = \"a\"\nkernels = [\"*\"]", "matches everything: `*`"),
            ("[[family]]\nname = \"other\"\nkernels = []", "cannot be called `other`"),
            (
                "[[family]]\nname = \"a\"\nkernels = []\n[[family]]\nname = \"a\"\nkernels = []",
                "`a` is there twice",
            ),
            ("family = []", "no [[family]]"),
            ("[[family]", "line 1"),
        ] {
            let told = FamilyRules::parse(text).unwrap_err();
            assert!(told.contains(part), "{text:?}: {told}");
        }
    }
}
