"""Programs to copy, one file each, and in `demo/` the applications of `lakequeue demo`.

| file | shows |
|---|---|
| `worker.py` | handle messages, try again later, reject, stop on a signal |
| `publisher.py` | publish fast, and get each message's outcome |
| `request_reply.py` | send requests to a server over queues, and wait for its replies |
| `plain_kafka.py` | use a queue with only a Kafka client |
| `spark_job.py` | read a queue in a Spark job |
| `celery_shop.py` | run Celery tasks on lakequeue |
"""
