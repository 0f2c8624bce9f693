//! Mistakes that an overlapped engine is prone to, made on purpose: the tests must find each of them.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Gives a request's pages back when its last step is planned, not when it has run: one step early.
    FreesEarly,
    /// Takes the row of a request that ended out of the books of the step under way, so that its late token is
    /// missing there and those behind it go to the wrong requests.
    DropsLateToken,
}
