//! Chat for DeepSeek-V4: conversations to prompts, prompts to tokens, tokens back to text, and the model's
//! output sorted into thinking, answer and tool calls, as it streams. Knows no HTTP and no model.
//!
//! ```
//! use overshot_chat::{
//!     Delta, Effort, End, Message, OutputParser, ParseOptions, PromptTexts, RenderOptions, Tokenizer, render,
//! };
//! # use overshot_chat::ChatError;
//! # fn main() -> Result<(), ChatError> {
//! # let model_folder = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/dsv4-mini"));
//! let tokenizer = Tokenizer::from_file(&model_folder.join("tokenizer.json"))?;
//! let texts = PromptTexts::from_model_folder(model_folder)?;
//!
//! let mut messages = vec![Message::user("What is 6 times 4?")];
//! let options = RenderOptions { effort: Effort::High, ..Default::default() };
//! let prompt = render(&messages, &options, &texts)?;
//! let ids = prompt.ids(&tokenizer)?;
//! assert_eq!(prompt.text(), "<｜begin▁of▁sentence｜><｜User｜>What is 6 times 4?<｜Assistant｜><think>");
//! assert_eq!(tokenizer.encode_with_specials(&prompt.text())?, ids);
//!
//! # let generated = tokenizer.encode_with_specials("6 * 4 = 24.</think>24<｜end▁of▁sentence｜>")?;
//! let options = ParseOptions { start: prompt.start(), ..Default::default() };
//! let mut parser = OutputParser::new(&tokenizer, options);
//! for token in generated {
//!     for delta in parser.push(token) {
//!         match delta {
//!             Delta::Reasoning(text) => eprint!("{text}"),
//!             Delta::Content(text) => print!("{text}"),
//!             _ => {}
//!         }
//!     }
//! }
//! let answer = parser.finish(End::Stop).message;
//! assert_eq!((answer.reasoning_content.as_str(), answer.content.as_str()), ("6 * 4 = 24.", "24"));
//! messages.push(answer.to_message());
//! # Ok(())
//! # }
//! ```
//!
//! Start with `encode.rs` for the way in and `parse/mod.rs` for the way out.

mod delivery;
mod detokenize;
mod encode;
mod error;
mod files;
mod message;
mod parse;
mod pieces;
mod prompts;
mod python_json;
mod python_literals;
mod special;
mod splitting;
mod stop;
mod tokenizer;
mod tokenizer_file;
mod turns;

pub use delivery::{Delivery, Ending};
pub use detokenize::{Detokenizer, Utf8Stream};
pub use encode::{Prompt, RenderOptions, render};
pub use error::ChatError;
pub use message::{Content, Effort, FunctionCall, FunctionTag, Message, Part, Role, Task, Tool, ToolCall};
pub use parse::{
    Delta, Deltas, End, FinishReason, Finished, OutputParser, ParseOptions, ParsedCall, ParsedMessage,
    PieceParser, Start, ToolChoice, parse_text,
};
pub use pieces::{Piece, Pieces};
pub use prompts::PromptTexts;
pub use python_json::{Json, JsonError};
pub use special::Special;
pub use stop::StopStrings;
pub use tokenizer::Tokenizer;
