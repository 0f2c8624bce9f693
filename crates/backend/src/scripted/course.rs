//! Which sequence plays which script. A backend never sees a request: a sequence is the window page that its rows
//! name, and it begins with the row that starts at position 0.
//!
//! A sequence takes the next script when its first token is drawn, unless it is one that was preempted and is
//! computed again from position 0: then what it is fed is the prompt and the first tokens of an answer that is being
//! played, and it goes on with that answer.
//!
//! What this cannot tell apart: a new prompt that spells exactly the prompt and the beginning of another answer from
//! its recomputation, and two preempted sequences whose prompts and answers so far are equal. An answer in which a
//! mask replaced tokens is not recognised.

use super::script::Script;
use overshot_kv::PageId;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// Answers kept whose page was taken over, ended ones too, as nobody says which have ended. More requests than this
/// are hardly preempted at once.
const DISPLACED_MOST: usize = 1024;

pub struct Draw {
    /// At least one.
    pub tokens: Vec<u32>,
    pub delay: Duration,
}

pub struct Courses {
    scripts: Vec<Script>,
    next_script: usize,
    /// Yielded behind a script's end.
    eos_token: u32,
    by_window: HashMap<PageId, Course>,
    /// Oldest first.
    displaced: VecDeque<Answer>,
}

#[derive(Clone, Copy)]
struct Course {
    /// Positions whose tokens came.
    fed: usize,
    /// Of those that came before the first draw.
    hash: u64,
    answer: Option<Answer>,
}

/// A script that is being played behind a prompt.
#[derive(Clone, Copy)]
struct Answer {
    script: usize,
    prompt_tokens: usize,
    prompt_hash: u64,
    drawn: usize,
}

impl Courses {
    pub fn new(scripts: Vec<Script>, eos_token: u32) -> Self {
        let (by_window, displaced) = (HashMap::new(), VecDeque::new());
        Courses { scripts, next_script: 0, eos_token, by_window, displaced }
    }

    pub fn scripts(&self) -> &[Script] {
        &self.scripts
    }

    /// A copied window is a second sequence with the same past.
    pub fn copy(&mut self, from: PageId, to: PageId) {
        if let Some(course) = self.by_window.get(&from).copied() {
            self.place(to, course);
        }
    }

    /// Takes in tokens from position `start` on.
    ///
    /// # Errors
    /// A row that does not go on where its sequence is, in words.
    pub fn feed(&mut self, window: PageId, start: usize, tokens: &[u32]) -> Result<(), String> {
        if start == 0 {
            let course = Course { fed: tokens.len(), hash: hash(0, tokens), answer: None };
            self.place(window, course);
            return Ok(());
        }
        let Some(course) = self.by_window.get_mut(&window) else {
            return Err(format!("it starts at position {start}, and no sequence began in window {window:?}"));
        };
        // Positions of the answer may be computed again; a prompt, whose hash cannot be taken back, may not.
        let first = course.answer.map_or(course.fed, |answer| answer.prompt_tokens);
        if !(first..=course.fed).contains(&start) {
            return Err(format!("it starts at position {start} of a sequence of {} positions", course.fed));
        }
        if course.answer.is_none() {
            course.hash = hash(course.hash, tokens);
        }
        course.fed = start + tokens.len();
        Ok(())
    }

    /// What the script has for the position behind all that was fed; `None` when nothing was.
    pub fn draw(&mut self, window: PageId) -> Option<Draw> {
        let course = *self.by_window.get(&window)?;
        let mut answer = match course.answer {
            Some(answer) => answer,
            None => self.resume(course).unwrap_or_else(|| self.begin(course)),
        };
        let offset = course.fed - answer.prompt_tokens;
        let script = &self.scripts[answer.script];
        let tokens = match script.step_from(offset) {
            [] => vec![self.eos_token],
            tokens => tokens.to_vec(),
        };
        let delay = script.delay_at(offset);
        answer.drawn = answer.drawn.max(offset + tokens.len());
        self.by_window.insert(window, Course { answer: Some(answer), ..course });
        Some(Draw { tokens, delay })
    }

    fn place(&mut self, window: PageId, course: Course) {
        let before = self.by_window.insert(window, course);
        if let Some(answer) = before.and_then(|before| before.answer) {
            self.displaced.push_back(answer);
            if self.displaced.len() > DISPLACED_MOST {
                self.displaced.pop_front();
            }
        }
    }

    fn begin(&mut self, course: Course) -> Answer {
        let script = self.next_script;
        self.next_script = (script + 1) % self.scripts.len();
        Answer { script, prompt_tokens: course.fed, prompt_hash: course.hash, drawn: 0 }
    }

    /// The answer that a sequence was in the middle of, taken from where it was kept.
    fn resume(&mut self, course: Course) -> Option<Answer> {
        if let Some(index) = self.displaced.iter().position(|answer| self.continues(answer, course)) {
            return self.displaced.remove(index);
        }
        let continued = |held: &Course| held.answer.filter(|answer| self.continues(answer, course));
        let (window, answer) =
            self.by_window.iter().find_map(|(window, held)| Some((*window, continued(held)?)))?;
        self.by_window.remove(&window);
        Some(answer)
    }

    fn continues(&self, answer: &Answer, course: Course) -> bool {
        let Some(known) = course.fed.checked_sub(answer.prompt_tokens) else { return false };
        let tokens = self.scripts[answer.script].tokens();
        (1..=answer.drawn.min(tokens.len())).contains(&known)
            && hash(answer.prompt_hash, &tokens[..known]) == course.hash
    }
}

/// Two token lists of equal hash would only play the wrong line of a test.
fn hash(before: u64, tokens: &[u32]) -> u64 {
    tokens.iter().fold(before, |sum, token| {
        (sum.rotate_left(11) ^ u64::from(*token)).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    })
}
