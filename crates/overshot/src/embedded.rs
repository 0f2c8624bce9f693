//! The small trained model inside the binary. Built with the feature `embedded-model`, which is on by default.

/// The files of a model folder, as bytes of the binary.
pub struct EmbeddedModel {
    pub name: &'static str,
    pub config: &'static str,
    pub generation_config: &'static str,
    pub weights: &'static [u8],
    pub tokenizer: &'static str,
    pub prompts: &'static str,
}

#[cfg(feature = "embedded-model")]
macro_rules! folder {
    () => {
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/dsv4-mini")
    };
}

#[cfg(feature = "embedded-model")]
static DSV4_MINI: EmbeddedModel = EmbeddedModel {
    name: "dsv4-mini",
    config: include_str!(concat!(folder!(), "/config.json")),
    generation_config: include_str!(concat!(folder!(), "/generation_config.json")),
    weights: include_bytes!(concat!(folder!(), "/model.safetensors")),
    tokenizer: include_str!(concat!(folder!(), "/tokenizer.json")),
    prompts: include_str!(concat!(folder!(), "/encoding/prompts.json")),
};

/// `None` when this binary was built without one.
pub fn embedded_model() -> Option<&'static EmbeddedModel> {
    #[cfg(feature = "embedded-model")]
    return Some(&DSV4_MINI);
    #[cfg(not(feature = "embedded-model"))]
    None
}
