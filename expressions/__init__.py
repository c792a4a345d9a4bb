"""The expression language (Q6): filters, priorities, barriers, `where` of commands.

Pure: text in, a `Program` out, which is evaluated on a payload. The grammar is in `grammar.lark`.
"""

from .language import ExpressionError, Program, as_priority, compile_program, is_true, predicate

__all__ = [
    "ExpressionError",
    "Program",
    "as_priority",
    "compile_program",
    "is_true",
    "predicate",
]
