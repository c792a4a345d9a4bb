"""The expression language (Q6): filters, priorities, barriers, what an administrator looks for.

Pure: text in, a `Program` out, which runs over a payload. The grammar stands in `grammar.lark`.
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
