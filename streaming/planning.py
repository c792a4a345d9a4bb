"""Settings of the engine's query alone: what Spark does for each batch before it reads a record.

Each batch is planned anew, and for a small one that is most of Spark's work. The query has one
shape and its rows go on to Python, so there is little to find (decision 0008):

- no code is generated, and no common parts of expressions are looked for;
- the plan is neither checked after every rule nor drawn for the web page in full;
- rules that have nothing to do in this plan, or nothing that matters, are not run.
"""

from __future__ import annotations

# In the order of their cost, together 8 of a batch's 200 ms on a slow machine.
_RULES_WITHOUT_USE = (
    "catalyst.optimizer.RemoveRedundantAliases",
    "delta.metric.OptimizeConditionalIncrementMetric",
    "catalyst.optimizer.ConvertToLocalRelation",
    "catalyst.optimizer.FoldablePropagation",
    "delta.stats.PrepareDeltaScan",
    "catalyst.optimizer.RemoveNoopOperators",
    "catalyst.optimizer.OptimizeUpdateFields",
    "catalyst.optimizer.OptimizeCsvJsonExprs",
    "delta.optimizer.RangePartitionIdRewrite",
    "catalyst.optimizer.SimplifyConditionals",
    "catalyst.optimizer.NullPropagation",
    "catalyst.optimizer.OptimizeOneRowRelationSubquery",
    "catalyst.optimizer.ConstantFolding",
    "catalyst.optimizer.RewriteCorrelatedScalarSubquery",
)
QUERY_SETTINGS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.subexpressionElimination.enabled": "false",
    "spark.sql.constraintPropagation.enabled": "false",
    "spark.sql.lightweightPlanChangeValidation": "false",
    "spark.sql.ui.explainMode": "simple",
    "spark.sql.optimizer.excludedRules": ",".join(
        f"org.apache.spark.sql.{rule}" for rule in _RULES_WITHOUT_USE
    ),
}
