//! Where a model comes from: the binary itself, or a path. One answer for weights, tokenizer, prompt texts and
//! sampling defaults, so that no command mixes two sources.

use crate::embedded::{EmbeddedModel, embedded_model};
use crate::failure::bad_input;
use crate::sampling::GenerationDefaults;
use overshot_chat::{PromptTexts, Tokenizer};
use overshot_model::{Bytes, Model};
use std::path::{Path, PathBuf};

#[derive(Clone)]
pub enum ModelSource {
    BuiltIn(&'static EmbeddedModel),
    Path(PathBuf),
}

impl ModelSource {
    /// # Errors
    /// No path, and a binary that was built without a model.
    pub fn from_flag(path: Option<&Path>) -> anyhow::Result<Self> {
        match (path, embedded_model()) {
            (Some(path), _) => Ok(ModelSource::Path(path.to_path_buf())),
            (None, Some(model)) => Ok(ModelSource::BuiltIn(model)),
            (None, None) => {
                Err(bad_input("this binary has no built-in model: name a checkpoint with --model PATH"))
            }
        }
    }

    /// For people: the name of the built-in model, or the path.
    pub fn label(&self) -> String {
        match self {
            ModelSource::BuiltIn(model) => format!("{} (built in)", model.name),
            ModelSource::Path(path) => path.display().to_string(),
        }
    }

    pub fn open(&self) -> anyhow::Result<Model> {
        Ok(match self {
            ModelSource::BuiltIn(model) => {
                Model::from_parts(model.config, Bytes::from_static(model.weights))?
            }
            ModelSource::Path(path) => Model::open(path)?,
        })
    }

    /// The tokenizer of an opened model.
    pub fn tokenizer(&self, model: &Model) -> anyhow::Result<Tokenizer> {
        let tokenizer = match self {
            ModelSource::BuiltIn(built_in) => {
                Tokenizer::from_bytes(built_in.tokenizer.as_bytes(), "tokenizer.json")?
            }
            ModelSource::Path(_) => Tokenizer::from_file(&folder(model).join("tokenizer.json"))?,
        };
        let (tokens, vocab_size) = (tokenizer.vocabulary_size(), model.spec.vocab_size);
        if tokens > vocab_size {
            let sentence = format!(
                "the tokenizer of {} has {tokens} tokens where the model has {vocab_size}: it belongs to another model",
                self.label()
            );
            return Err(bad_input(sentence));
        }
        Ok(tokenizer)
    }

    /// The fixed texts of an opened model's prompts.
    pub fn prompt_texts(&self, model: &Model) -> anyhow::Result<PromptTexts> {
        Ok(match self {
            ModelSource::BuiltIn(built_in) => {
                PromptTexts::from_json(built_in.prompts, "encoding/prompts.json")?
            }
            ModelSource::Path(_) => PromptTexts::from_model_folder(folder(model))?,
        })
    }

    /// The sampling defaults of an opened model; the publisher's where it brings none.
    pub fn generation_defaults(&self, model: &Model) -> anyhow::Result<GenerationDefaults> {
        if let ModelSource::BuiltIn(built_in) = self {
            return GenerationDefaults::parse(built_in.generation_config, "generation_config.json");
        }
        let path = folder(model).join("generation_config.json");
        match std::fs::read_to_string(&path) {
            Ok(text) => GenerationDefaults::parse(&text, &path.display().to_string()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(GenerationDefaults::default()),
            Err(error) => Err(bad_input(format!("cannot read {}: {error}", path.display()))),
        }
    }
}

fn folder(model: &Model) -> &Path {
    model.folder.as_deref().unwrap_or(Path::new("."))
}
