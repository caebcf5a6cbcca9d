"""What is inside needs LangGraph: test_langgraph.py runs it where that is installed."""

collect_ignore = ["inside"]
